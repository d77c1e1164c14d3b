// Feeds bytes to GgufReader and touches everything it gives. Several parts of a split set are separated by kSeparator.
// Build (from the repository root; tests/fuzz/run_gguf.sh does it and runs it):
//   clang++-14 -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I.
//     tests/fuzz/fuzz_gguf.cpp cpp/io/{file,mapped_file,printable}.cpp cpp/io/gguf_*.cpp cpp/base/error.cpp
//     cpp/tensor/dtype.cpp -o build/fuzz_gguf
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/io/printable.h"

namespace expertree {
namespace {

constexpr std::string_view kSeparator = "|NEXT-PART|";

void require(bool condition) {
  if (!condition) __builtin_trap();
}

class MemoryFile final : public File {
 public:
  MemoryFile(const std::string& path, std::string_view bytes) : File(path, bytes.size()), bytes_(bytes) {}

 protected:
  // Odd sizes, so that short reads are always under test.
  int64_t read_some(uint64_t offset, uint64_t size, std::byte* out) const override {
    require(offset + size <= bytes_.size());
    size = std::min<uint64_t>(size, 997);
    std::memcpy(out, bytes_.data() + offset, size);
    return static_cast<int64_t>(size);
  }

 private:
  std::string_view bytes_;
};

std::vector<std::string_view> split_parts(std::string_view bytes) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = bytes.find(kSeparator);
    parts.push_back(bytes.substr(0, end));
    if (end == std::string_view::npos) return parts;
    bytes.remove_prefix(end + kSeparator.size());
  }
}

std::string part_path(size_t no, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "m-%05zu-of-%05zu.gguf", no + 1, count);
  return name;
}

void check_message(const Error& error) {
  require(is_plain_text(error.what()));
  require(std::strlen(error.what()) < 4000);
  require(error.code() != ErrorCode::kInternal);
}

template <typename Call>
void touch(Call call) {
  try {
    call();
  } catch (const Error& error) {
    check_message(error);
  }
}

void touch_value(const GgufReader& reader, const std::string& key) {
  const GgufValue* value = reader.find(key);
  require(value != nullptr);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < value->size_bytes; ++i) sum += std::to_integer<uint64_t>(value->data[i]);
  if (value->type == GgufValueType::kArray && value->element_type == GgufValueType::kString) {
    const std::byte* cursor = value->data;
    for (uint64_t i = 0; i < value->n_elements; ++i) sum += next_gguf_string(&cursor).size();
    require(cursor == value->data + value->size_bytes);
  }
  require(sum < UINT64_MAX);
  touch([&] { require(reader.require_int(key, -5, 1000) <= 1000); });
  touch([&] { reader.int_or(key, 1, INT64_MIN, INT64_MAX); });
  touch([&] { require(reader.require_float(key) == reader.float_or(key, 2.0)); });
  touch([&] { reader.bool_or(key, true); });
  touch([&] { require(reader.require_string(key) == reader.string_or(key, "")); });
  for (int64_t n : {int64_t{-1}, int64_t{0}, int64_t{3}, int64_t{1} << 40}) {
    touch([&] { reader.require_ints(key, n, INT64_MIN, INT64_MAX); });
    touch([&] { reader.require_floats(key, n); });
    touch([&] { reader.require_bools(key, n); });
  }
}

void touch_tensor(const GgufReader& reader, const GgufTensor& tensor, const std::vector<std::string_view>& parts) {
  require(reader.find_tensor(tensor.name) == &tensor);
  require(is_plain_text(tensor.name) && tensor.size_bytes > 0);
  const uint64_t file_bytes = parts.at(static_cast<size_t>(tensor.file_index)).size();
  require(tensor.offset <= file_bytes && tensor.size_bytes <= file_bytes - tensor.offset);
  std::vector<std::byte> bytes(tensor.size_bytes);
  reader.read_tensor(tensor, 0, tensor.size_bytes, bytes.data());
  reader.read_tensor(tensor, tensor.size_bytes, 0, bytes.data());
  touch([&] { reader.tensor_data(tensor); });
}

void run(std::string_view bytes) {
  const std::vector<std::string_view> parts = split_parts(bytes);
  const auto open = [&](const std::string& path) -> std::unique_ptr<File> {
    for (size_t no = 0; no < parts.size(); ++no) {
      if (path != part_path(no, parts.size())) continue;
      if (parts[no].empty()) throw Error(ErrorCode::kModelFormat, "empty");
      return std::make_unique<MemoryFile>(path, parts[no]);
    }
    throw Error(ErrorCode::kInvalidRequest, printable(path) + ": there is no such file");
  };
  touch([&] {
    const GgufReader reader(part_path(0, parts.size()), open);
    require(reader.alignment() >= 8 && reader.file_bytes() <= bytes.size());
    touch([&] { reader.require_int("no such key", 0, 1); });
    for (const std::string& key : reader.keys()) touch_value(reader, key);
    for (const GgufTensor& tensor : reader.tensors()) touch_tensor(reader, tensor, parts);
    require(reader.find_tensor("no such tensor!") == nullptr || !reader.tensors().empty());
  });
}

}  // namespace
}  // namespace expertree

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  expertree::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
