// Parses one GGUF file, checked against its size. Private to cpp/io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/io/file.h"
#include "cpp/io/gguf_reader.h"

namespace expertree {

// Far above any model (896 experts kept one tensor each, three projections, 93 layers: 250 thousand).
constexpr uint64_t kMaxGgufTensors = uint64_t{1} << 20;
constexpr uint64_t kMaxGgufKeys = uint64_t{1} << 16;
constexpr uint64_t kMaxGgufKeyBytes = 65535;      // the specification's limit
constexpr uint64_t kMaxGgufTensorNameBytes = 64;  // the specification's limit
constexpr uint32_t kMinGgufAlignment = 8;         // the specification asks for multiples of 8
constexpr uint32_t kMaxGgufAlignment = 65536;     // the largest memory page in use

struct GgufPart {
  uint32_t version = 0;
  uint64_t alignment = 32;
  std::vector<std::byte> metadata;  // the file's first bytes; `values` point into it
  std::vector<std::string> keys;
  std::vector<GgufValue> values;     // of keys[i]
  std::vector<uint32_t> keys_order;  // indices of keys, sorted by name
  std::vector<GgufTensor> tensors;   // file_index is 0
  uint64_t data_begin = 0;           // byte where tensor data starts

  const GgufValue* find(std::string_view key) const;
};

GgufPart parse_gguf(const File& file);

// Makes the tensors' offsets, relative to data_begin, absolute and checks that they lie inside the file and that no
// second GGUF file follows them (split parts joined with cat).
void place_gguf_tensors(const File& file, GgufPart* part);

// Its place in a split set, from the split.* keys; count is 1 for a file that is not split.
struct GgufSplit {
  int64_t no;         // from 0
  int64_t count;      // 1..99999
  int64_t n_tensors;  // of all parts; -1 when not given
};
GgufSplit read_gguf_split(const File& file, const GgufPart& part);

// "dir/model-00001-of-00003.gguf" -> "dir/model" for part `no` (from 0) of `count`; empty when the name is another.
std::string gguf_split_prefix(const std::string& path, int64_t no, int64_t count);
std::string gguf_split_path(const std::string& prefix, int64_t no, int64_t count);

// Throws the Error that says in plain words what a file is that does not start as GGUF does.
[[noreturn]] void throw_not_gguf(const File& file);

}  // namespace expertree
