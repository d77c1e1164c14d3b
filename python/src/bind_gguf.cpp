// GgufReader for Python: values as int, float, bool, str (bytes when not UTF-8), numpy arrays and lists.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "cpp/base/error.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/io/printable.h"
#include "cpp/tensor/dtype.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

using NumpyArray = nb::ndarray<nb::numpy>;

// str, or bytes when `text` is not UTF-8.
nb::object to_text(std::string_view text) {
  PyObject* object = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "strict");
  if (object == nullptr) {
    PyErr_Clear();
    object = PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  }
  if (object == nullptr) nb::raise_python_error();
  return nb::steal(object);
}

nb::object to_path_text(const std::string& path) {
  PyObject* object = PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
  if (object == nullptr) nb::raise_python_error();
  return nb::steal(object);
}

// A one-dimensional numpy array that owns `bytes`.
nb::object to_numpy(std::unique_ptr<std::byte[]> bytes, size_t n_elements, nb::dlpack::dtype dtype) {
  std::byte* data = bytes.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
  bytes.release();
  return nb::cast(NumpyArray(data, 1, &n_elements, owner, nullptr, dtype));
}

nb::dlpack::dtype numpy_dtype(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8: return nb::dtype<uint8_t>();
    case GgufValueType::kI8: return nb::dtype<int8_t>();
    case GgufValueType::kU16: return nb::dtype<uint16_t>();
    case GgufValueType::kI16: return nb::dtype<int16_t>();
    case GgufValueType::kU32: return nb::dtype<uint32_t>();
    case GgufValueType::kI32: return nb::dtype<int32_t>();
    case GgufValueType::kF32: return nb::dtype<float>();
    case GgufValueType::kBool: return nb::dtype<bool>();
    case GgufValueType::kU64: return nb::dtype<uint64_t>();
    case GgufValueType::kI64: return nb::dtype<int64_t>();
    default: return nb::dtype<double>();
  }
}

nb::object to_list(const GgufValue& value) {
  const Py_ssize_t n = static_cast<Py_ssize_t>(value.n_elements);
  PyObject* list = PyList_New(n);
  if (list == nullptr) nb::raise_python_error();
  nb::object owner = nb::steal(list);
  const std::byte* cursor = value.data;
  for (Py_ssize_t i = 0; i < n; ++i) PyList_SET_ITEM(list, i, to_text(next_gguf_string(&cursor)).release().ptr());
  return owner;
}

nb::object array_to_python(const GgufValue& value) {
  if (value.element_type == GgufValueType::kString) return to_list(value);
  std::unique_ptr<std::byte[]> bytes(new std::byte[value.size_bytes]);
  std::memcpy(bytes.get(), value.data, value.size_bytes);
  return to_numpy(std::move(bytes), value.n_elements, numpy_dtype(value.element_type));
}

template <typename T>
T load(const GgufValue& value) {
  T number;
  std::memcpy(&number, value.data, sizeof(T));
  return number;
}

nb::object to_python(const GgufValue& value) {
  switch (value.type) {
    case GgufValueType::kU8: return nb::int_(load<uint8_t>(value));
    case GgufValueType::kI8: return nb::int_(load<int8_t>(value));
    case GgufValueType::kU16: return nb::int_(load<uint16_t>(value));
    case GgufValueType::kI16: return nb::int_(load<int16_t>(value));
    case GgufValueType::kU32: return nb::int_(load<uint32_t>(value));
    case GgufValueType::kI32: return nb::int_(load<int32_t>(value));
    case GgufValueType::kU64: return nb::int_(load<uint64_t>(value));
    case GgufValueType::kI64: return nb::int_(load<int64_t>(value));
    case GgufValueType::kF32: return nb::float_(static_cast<double>(load<float>(value)));
    case GgufValueType::kF64: return nb::float_(load<double>(value));
    case GgufValueType::kBool: return nb::bool_(load<uint8_t>(value) != 0);
    case GgufValueType::kString: return to_text({reinterpret_cast<const char*>(value.data), value.size_bytes});
    case GgufValueType::kArray: return array_to_python(value);
  }
  return nb::none();
}

const GgufValue& require_value(const GgufReader& reader, const std::string& key) {
  const GgufValue* value = reader.find(key);
  if (value == nullptr) throw nb::key_error(printable(key).c_str());
  return *value;
}

std::string value_type_text(const GgufReader& reader, const std::string& key) {
  const GgufValue& value = require_value(reader, key);
  if (value.type != GgufValueType::kArray) return gguf_value_type_name(value.type);
  return std::string("array[") + gguf_value_type_name(value.element_type) + "]";
}

nb::dict to_metadata(const GgufReader& reader) {
  nb::dict metadata;
  for (const std::string& key : reader.keys()) metadata[to_text(key)] = to_python(*reader.find(key));
  return metadata;
}

nb::object to_tensor_bytes(const GgufReader& reader, const std::string& name) {
  const GgufTensor* tensor = reader.find_tensor(name);
  if (tensor == nullptr) throw nb::key_error(printable(name).c_str());
  std::unique_ptr<std::byte[]> bytes;
  {
    nb::gil_scoped_release release;
    bytes.reset(new (std::nothrow) std::byte[tensor->size_bytes]);
    if (bytes == nullptr) {
      throw Error(ErrorCode::kOutOfMemory, "tensor " + printable(name) + ": no memory left for a copy of its " +
                                               std::to_string(tensor->size_bytes) + " bytes; close other programs");
    }
    reader.read_tensor(*tensor, 0, tensor->size_bytes, bytes.get());
  }
  return to_numpy(std::move(bytes), tensor->size_bytes, nb::dtype<uint8_t>());
}

nb::tuple to_shape(const GgufTensor& tensor) {
  nb::list shape;
  for (int32_t i = 0; i < tensor.n_dims; ++i) shape.append(tensor.ne[i]);
  return nb::tuple(shape);
}

std::string tensor_text(const GgufTensor& tensor) {
  std::string text = "<GgufTensor " + printable(tensor.name) + " " + gguf_type_name(tensor.gguf_type) + " (";
  for (int32_t i = 0; i < tensor.n_dims; ++i) text += (i > 0 ? ", " : "") + std::to_string(tensor.ne[i]);
  return text + ")>";
}

void bind_tensor(nb::module_& m) {
  nb::class_<GgufTensor>(m, "GgufTensor", "One row of a GGUF file's tensor directory.")
      .def_prop_ro(
          "name", [](const GgufTensor& t) { return to_text(t.name); }, nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "type", [](const GgufTensor& t) { return gguf_type_name(t.gguf_type); }, "Format as GGUF names it: 'Q4_K'.")
      .def_prop_ro(
          "is_supported", [](const GgufTensor& t) { return find_dtype(t.gguf_type) != nullptr; },
          "Whether expertree runs this format.")
      .def_ro("type_number", &GgufTensor::gguf_type, "GGUF type number.")
      .def_prop_ro("shape", &to_shape, nb::sig("def shape(self) -> tuple[int, ...]"),
                   "Elements per dimension, fastest first (GGUF's ne; numpy's shape is its reverse).")
      .def_ro("size_bytes", &GgufTensor::size_bytes)
      .def_ro("offset", &GgufTensor::offset, "Bytes from the start of its file.")
      .def_ro("file_index", &GgufTensor::file_index, "Index into GgufReader.paths.")
      .def("__repr__", &tensor_text);
}

void bind_reader(nb::module_& m) {
  nb::class_<GgufReader>(m, "GgufReader",
                         "Metadata and tensor directory of a GGUF file or split set (give the first part).\n\n"
                         "Raises ModelFormatError, UnsupportedError, InvalidRequestError, DeviceError.")
      .def(
          "__init__",
          [](GgufReader* self, const std::filesystem::path& path) {
            nb::gil_scoped_release release;
            new (self) GgufReader(path.string());
          },
          "path"_a)
      .def_prop_ro(
          "paths",
          [](const GgufReader& r) {
            nb::list paths;
            for (const std::string& path : r.paths()) paths.append(to_path_text(path));
            return paths;
          },
          nb::sig("def paths(self) -> list[str]"), "The file, or all parts in order.")
      .def_prop_ro("version", &GgufReader::version)
      .def_prop_ro("alignment", &GgufReader::alignment, "Bytes; of part 1.")
      .def_prop_ro("file_bytes", &GgufReader::file_bytes, "Of all parts together.")
      .def_prop_ro(
          "keys",
          [](const GgufReader& r) {
            nb::list keys;
            for (const std::string& key : r.keys()) keys.append(to_text(key));
            return keys;
          },
          nb::sig("def keys(self) -> list[str]"), "In file order.")
      .def(
          "value", [](const GgufReader& r, const std::string& key) { return to_python(require_value(r, key)); },
          "key"_a, nb::sig("def value(self, key: str) -> int | float | bool | str | bytes | list | numpy.ndarray"),
          "int, float, bool, str (bytes when it is not UTF-8); an array of numbers as a numpy array of its type, one "
          "of strings as a list. Raises KeyError.")
      .def("value_type", &value_type_text, "key"_a, "'uint32', 'array[string]'. Raises KeyError.")
      .def("metadata", &to_metadata, nb::sig("def metadata(self) -> dict[str, object]"), "All keys with their values.")
      .def_prop_ro(
          "tensors",
          [](const GgufReader& r) {
            nb::list tensors;
            for (const GgufTensor& tensor : r.tensors()) tensors.append(nb::cast(tensor));
            return tensors;
          },
          nb::sig("def tensors(self) -> list[GgufTensor]"), "A new list of all parts' tensors.")
      .def("tensor_bytes", &to_tensor_bytes, "name"_a, nb::sig("def tensor_bytes(self, name: str) -> numpy.ndarray"),
           "uint8 copy of a tensor's encoded bytes. Raises KeyError, DeviceError.");
}

}  // namespace

void bind_gguf(nb::module_& m) {
  bind_tensor(m);
  bind_reader(m);
}

}  // namespace expertree
