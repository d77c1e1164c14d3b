// Reads the metadata and the tensor directory of a GGUF file, versions 2 and 3, or of a split set.
// Files come from strangers: every length is checked against the bytes that are there before it is used,
// and every fault is an Error that names the file, the key or tensor, what was expected and found, and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/io/file.h"

namespace expertree {

enum class GgufValueType : uint8_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// As the GGUF specification names it: "uint8", "string", "array".
const char* gguf_value_type_name(GgufValueType type);

// A view into the reader's copy of the metadata; lives as long as the GgufReader. Arrays are not expanded: numbers
// lie packed, unaligned and little-endian; bools are bytes 0 or 1; a string is its 64-bit length and its bytes.
struct GgufValue {
  GgufValueType type;
  GgufValueType element_type;  // arrays only; never kArray (nested arrays are refused)
  uint64_t n_elements;         // arrays only
  const std::byte* data;       // scalar: its bytes; string: its characters; array: its first element's encoding
  uint64_t size_bytes;         // scalar: 1..8; string: length; array: total encoded bytes
};

// Cuts the next string off an array of strings. `*cursor` starts at value.data and is used n_elements times.
std::string_view next_gguf_string(const std::byte** cursor);

struct GgufTensor {
  std::string name;      // UTF-8 without control characters, 1..64 bytes
  int32_t gguf_type;     // a known, not withdrawn GGUF type number; may be one that expertree does not run
  int32_t n_dims;        // 1..4
  int64_t ne[4];         // elements per dimension, fastest first; unused ones are 1; the product fits int64_t
  int32_t file_index;    // into GgufReader::paths()
  uint64_t offset;       // absolute, bytes from the start of that file
  uint64_t size_bytes;   // checked to lie inside that file
};

class GgufReader {
 public:
  // Opens `path`; when it is part 1 of a split set, the other parts too. Throws kModelFormat (not GGUF, damaged or
  // incomplete), kUnsupported, kInvalidRequest (no such file), kDevice, kOutOfMemory.
  explicit GgufReader(const std::string& path);
  // The same with files from elsewhere than the file system, for tests.
  GgufReader(const std::string& path, const FileOpener& open);
  ~GgufReader();
  GgufReader(GgufReader&&) noexcept;
  GgufReader& operator=(GgufReader&&) noexcept;

  const std::vector<std::string>& paths() const { return paths_; }
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }    // of part 1: a power of two, 8..65536
  uint64_t file_bytes() const { return file_bytes_; }  // all parts together

  // Keys of part 1 in file order; UTF-8 without control characters, 1..65535 bytes.
  const std::vector<std::string>& keys() const;
  const GgufValue* find(std::string_view key) const;  // nullptr when absent

  // Typed look-ups. Any integer type that holds the value is accepted for an integer, any float type for a float
  // (finite); another type or an out-of-range value throws kModelFormat naming the key and both types.
  int64_t require_int(std::string_view key, int64_t min, int64_t max) const;
  int64_t int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  double require_float(std::string_view key) const;
  double float_or(std::string_view key, double fallback) const;
  bool bool_or(std::string_view key, bool fallback) const;
  std::string require_string(std::string_view key) const;
  std::string string_or(std::string_view key, const std::string& fallback) const;
  // A scalar gives n equal values; an array must have exactly n elements (or at least one when n < 0: all of them).
  std::vector<int64_t> require_ints(std::string_view key, int64_t n, int64_t min, int64_t max) const;
  std::vector<double> require_floats(std::string_view key, int64_t n) const;
  std::vector<bool> require_bools(std::string_view key, int64_t n) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr when absent
  // The mapped bytes of a tensor. Reading them after the file was truncated by somebody else faults: the engine
  // loads weights with read_tensor instead; this is for inspection right after opening and for tests.
  const std::byte* tensor_data(const GgufTensor& tensor) const;
  // Copies `size` bytes at `offset` inside the tensor with pread; a short read throws kDevice naming file and offset.
  void read_tensor(const GgufTensor& tensor, uint64_t offset, uint64_t size, std::byte* out) const;
  // The open file of a part, for asynchronous reads.
  const File& file(int32_t file_index) const;

 private:
  struct Impl;
  void open(const std::string& path, const FileOpener& opener);
  void open_other_parts(const FileOpener& opener);
  void index_tensors();
  const GgufValue& require(std::string_view key) const;
  template <typename T, typename Convert>
  std::vector<T> require_many(std::string_view key, int64_t n, Convert convert) const;

  std::unique_ptr<Impl> impl_;
  std::vector<std::string> paths_;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  uint64_t file_bytes_ = 0;
  std::vector<GgufTensor> tensors_;
};

}  // namespace expertree
