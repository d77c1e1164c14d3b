// Files with injected faults, for tests of everything that reads files.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cpp/io/file.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/io/mapped_file.h"
#include "python/src/faulty_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

class FaultyFile final : public File {
 public:
  FaultyFile(std::unique_ptr<File> file, const Faults& faults)
      : File(file->path(), file->size()), file_(std::move(file)), faults_(faults) {}

  int descriptor() const override { return faults_.descriptor ? file_->descriptor() : -1; }
  void check_unchanged() const override { file_->check_unchanged(); }

  int64_t descriptor_result(uint64_t offset, std::byte* out, int64_t result) const override {
    if (result < 0) return result;
    int64_t given = fault_of(n_reads_.fetch_add(1) + 1);
    if (given == 0 && offset >= faults_.fail_at) given = -EIO;
    if (given == 0) given = static_cast<int64_t>(std::min(static_cast<uint64_t>(result), faults_.max_read_bytes));
    // What is said not to have been read must not be there.
    const int64_t kept = std::max<int64_t>(given, 0);
    std::memset(out + kept, 0xff, static_cast<size_t>(result - kept));
    return given;
  }

 protected:
  int64_t read_some(uint64_t offset, uint64_t size, std::byte* out) const override {
    const int64_t fault = fault_of(n_reads_.fetch_add(1) + 1);
    if (fault < 0) return fault;
    if (offset >= faults_.end_at) return 0;
    if (offset >= faults_.fail_at) return -EIO;
    size = std::min({size, faults_.max_read_bytes, faults_.end_at - offset, faults_.fail_at - offset});
    file_->read_exact(offset, size, out);
    return static_cast<int64_t>(size);
  }

 private:
  // 0 or -errno, after the delay.
  int64_t fault_of(uint64_t call) const {
    if (faults_.interrupt_every != 0 && call % faults_.interrupt_every == 0) return -EINTR;
    if (call <= faults_.first_fault) return 0;
    if (faults_.delay_every != 0 && call % faults_.delay_every == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(faults_.delay_us));
    }
    return faults_.fail_every != 0 && call % faults_.fail_every == 0 ? -EIO : 0;
  }

  std::unique_ptr<File> file_;
  Faults faults_;
  mutable std::atomic<uint64_t> n_reads_{0};
};

nb::bytes read_file(const std::string& path, uint64_t offset, uint64_t size, const Faults& faults) {
  const std::unique_ptr<File> file = with_faults(open_file(path), faults);
  std::string bytes(size, '\0');
  file->read_exact(offset, size, reinterpret_cast<std::byte*>(bytes.data()));
  return nb::bytes(bytes.data(), bytes.size());
}

nb::bytes map_file(const std::string& path) {
  const MappedFile mapped(*open_file(path));
  return nb::bytes(reinterpret_cast<const char*>(mapped.data()), mapped.size());
}

nb::bytes mapped_tensor(const GgufReader& reader, const std::string& name) {
  const GgufTensor* tensor = reader.find_tensor(name);
  if (tensor == nullptr) throw nb::key_error(name.c_str());
  return nb::bytes(reinterpret_cast<const char*>(reader.tensor_data(*tensor)), tensor->size_bytes);
}

// The typed look-ups that the model loader uses.
void bind_look_ups(nb::module_& m) {
  using Reader = const GgufReader&;
  using Key = const std::string&;
  m.def("gguf_require_int", [](Reader r, Key key, int64_t min, int64_t max) { return r.require_int(key, min, max); });
  m.def("gguf_int_or",
        [](Reader r, Key key, int64_t other, int64_t min, int64_t max) { return r.int_or(key, other, min, max); });
  m.def("gguf_require_float", [](Reader r, Key key) { return r.require_float(key); });
  m.def("gguf_float_or", [](Reader r, Key key, double other) { return r.float_or(key, other); });
  m.def("gguf_bool_or", [](Reader r, Key key, bool other) { return r.bool_or(key, other); });
  m.def("gguf_require_string", [](Reader r, Key key) { return r.require_string(key); });
  m.def("gguf_string_or", [](Reader r, Key key, Key other) { return r.string_or(key, other); });
  m.def("gguf_require_ints",
        [](Reader r, Key key, int64_t n, int64_t min, int64_t max) { return r.require_ints(key, n, min, max); });
  m.def("gguf_require_floats", [](Reader r, Key key, int64_t n) { return r.require_floats(key, n); });
  m.def("gguf_require_bools", [](Reader r, Key key, int64_t n) { return r.require_bools(key, n); });
}

}  // namespace

std::unique_ptr<File> with_faults(std::unique_ptr<File> file, const Faults& faults) {
  return std::make_unique<FaultyFile>(std::move(file), faults);
}

void bind_testing_io(nb::module_& m) {
  nb::class_<Faults>(m, "Faults", "Faults that a file's reads meet.")
      .def(
          "__init__",
          [](Faults* self, uint64_t max_read_bytes, uint64_t interrupt_every, uint64_t fail_at, uint64_t end_at) {
            new (self) Faults{max_read_bytes, interrupt_every, fail_at, end_at};
          },
          nb::kw_only(), "max_read_bytes"_a = UINT64_MAX, "interrupt_every"_a = 0, "fail_at"_a = UINT64_MAX,
          "end_at"_a = UINT64_MAX)
      .def_rw("max_read_bytes", &Faults::max_read_bytes)
      .def_rw("fail_every", &Faults::fail_every)
      .def_rw("first_fault", &Faults::first_fault)
      .def_rw("delay_every", &Faults::delay_every)
      .def_rw("delay_us", &Faults::delay_us)
      .def_rw("descriptor", &Faults::descriptor);
  m.def("read_file", &read_file, "path"_a, "offset"_a, "size"_a, "faults"_a);
  m.def("map_file", &map_file, "path"_a);
  m.def("mapped_tensor", &mapped_tensor, "reader"_a, "name"_a);
  m.def(
      "open_gguf_with_faults",
      [](const std::string& path, const Faults& faults) {
        return new GgufReader(path, [&](const std::string& part) -> std::unique_ptr<File> {
          return with_faults(open_file(part), faults);
        });
      },
      "path"_a, "faults"_a, nb::rv_policy::take_ownership);
  bind_look_ups(m);
}

}  // namespace expertree
