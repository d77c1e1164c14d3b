// expertree._core._testing: element formats and their reference decoding and encoding.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cpp/base/error.h"
#include "cpp/tensor/dequantize.h"
#include "cpp/tensor/dtype.h"
#include "cpp/tensor/half.h"
#include "cpp/tensor/quantize.h"

namespace nb = nanobind;

namespace expertree {
namespace {

template <typename T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using NumpyMatrix = nb::ndarray<nb::numpy, T, nb::ndim<2>>;
template <typename T>
using NumpyVector = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// Hands a new[] buffer to Python, which frees it with the array.
template <typename T>
nb::capsule owner_of(std::unique_ptr<T[]> buffer) {
  return nb::capsule(buffer.release(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
}

template <typename T>
NumpyMatrix<T> to_numpy(std::unique_ptr<T[]> buffer, size_t n_rows, size_t n_columns) {
  T* data = buffer.get();
  return NumpyMatrix<T>(data, {n_rows, n_columns}, owner_of(std::move(buffer)));
}

const DTypeInfo& dtype_by_name(const std::string& name) {
  for (int32_t number = 0; number < 64; ++number) {
    const DTypeInfo* info = find_dtype(number);
    if (info != nullptr && name == info->name) return *info;
  }
  throw Error(ErrorCode::kInvalidRequest, "no supported element format is named '" + name + "'; see dtype_table()");
}

NumpyMatrix<float> dequantize(const std::string& type_name, Matrix<uint8_t> raw) {
  const DTypeInfo& info = dtype_by_name(type_name);
  const size_t n_rows = raw.shape(0);
  const size_t n_bytes = raw.shape(1);
  const size_t block_bytes = static_cast<size_t>(info.block_bytes);
  if (n_bytes % block_bytes != 0) {
    throw Error(ErrorCode::kInvalidRequest, std::to_string(n_bytes) + " bytes per row are not whole " + info.name +
                                                " blocks of " + std::to_string(block_bytes) + " bytes");
  }
  const size_t n = n_bytes / block_bytes * static_cast<size_t>(info.block_size);
  auto out = std::make_unique<float[]>(n_rows * n);
  for (size_t row = 0; row < n_rows; ++row) {
    dequantize_row(info.dtype, reinterpret_cast<const std::byte*>(raw.data() + row * n_bytes), static_cast<int64_t>(n),
                   out.get() + row * n);
  }
  return to_numpy(std::move(out), n_rows, n);
}

NumpyMatrix<uint8_t> quantize(const std::string& type_name, Matrix<float> values) {
  const DTypeInfo& info = dtype_by_name(type_name);
  const size_t n_rows = values.shape(0);
  const size_t n = values.shape(1);
  if (n % static_cast<size_t>(info.block_size) != 0) {
    throw Error(ErrorCode::kInvalidRequest, std::to_string(n) + " values per row are not whole " + info.name +
                                                " blocks of " + std::to_string(info.block_size));
  }
  const size_t n_bytes = static_cast<size_t>(row_bytes(info.dtype, static_cast<int64_t>(n)));
  auto out = std::make_unique<uint8_t[]>(n_rows * n_bytes);
  for (size_t row = 0; row < n_rows; ++row) {
    quantize_row(info.dtype, values.data() + row * n, static_cast<int64_t>(n),
                 reinterpret_cast<std::byte*>(out.get() + row * n_bytes));
  }
  return to_numpy(std::move(out), n_rows, n_bytes);
}

const char* activation_name(ActivationFormat format) {
  switch (format) {
    case ActivationFormat::kF32: return "F32";
    case ActivationFormat::kQ8_32: return "Q8_32";
    case ActivationFormat::kQ8_256: return "Q8_256";
  }
  return "?";
}

// One dict per supported format.
nb::list dtype_table() {
  nb::list rows;
  for (int32_t number = 0; number < 64; ++number) {
    const DTypeInfo* info = find_dtype(number);
    if (info == nullptr) continue;
    nb::dict row;
    row["name"] = info->name;
    row["gguf_type"] = number;
    row["block_size"] = info->block_size;
    row["block_bytes"] = info->block_bytes;
    row["activation"] = activation_name(info->activation);
    rows.append(row);
  }
  return rows;
}

template <typename To, typename From>
NumpyVector<To> map(Vector<From> values, To (*convert)(From)) {
  const size_t n = values.shape(0);
  auto out = std::make_unique<To[]>(n);
  for (size_t i = 0; i < n; ++i) out[i] = convert(values.data()[i]);
  To* data = out.get();
  return NumpyVector<To>(data, {n}, owner_of(std::move(out)));
}

}  // namespace

void bind_testing_tensor(nb::module_& m) {
  m.def("dtype_table", &dtype_table,
        "One dict per supported format: name, gguf_type, block_size, block_bytes, activation.");
  m.def("dequantize", &dequantize, nb::arg("type_name"), nb::arg("raw"),
        "raw: uint8 [rows, row_bytes] -> float32 [rows, n]; the reference decoder.");
  m.def("quantize", &quantize, nb::arg("type_name"), nb::arg("values"),
        "values: float32 [rows, n] -> uint8 [rows, row_bytes]; the reference encoder.");
  m.def("half_to_float", [](Vector<uint16_t> v) { return map<float, uint16_t>(v, half_to_float); });
  m.def("float_to_half", [](Vector<float> v) { return map<uint16_t, float>(v, float_to_half); });
  m.def("bfloat16_to_float", [](Vector<uint16_t> v) { return map<float, uint16_t>(v, bfloat16_to_float); });
  m.def("float_to_bfloat16", [](Vector<float> v) { return map<uint16_t, float>(v, float_to_bfloat16); });
  m.def("e8m0_to_float_half", [](Vector<uint8_t> v) { return map<float, uint8_t>(v, e8m0_to_float_half); });
}

}  // namespace expertree
