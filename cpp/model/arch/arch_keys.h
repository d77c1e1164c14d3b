// Metadata keys of one architecture, typed.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpp/io/gguf_reader.h"

namespace expertree {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// Reads keys under the architecture's prefix: require_int("block_count") reads "qwen3moe.block_count".
class ArchKeys {
 public:
  ArchKeys(const GgufReader& reader, std::string arch) : reader_(reader), arch_(std::move(arch)) {}

  std::string full(const char* key) const { return arch_ + "." + key; }
  bool has(const char* key) const { return reader_.find(full(key)) != nullptr; }
  // Counts and widths: 1 .. 2^31 - 1 unless min says otherwise.
  int64_t require_int(const char* key, int64_t min = 1) const;
  int64_t int_or(const char* key, int64_t fallback, int64_t min = 1) const;
  // One value for all layers, or an array of n.
  std::vector<int64_t> require_ints(const char* key, int64_t n, int64_t min = 1) const;
  // The one value that all layers have; throws kUnsupported for an array of several.
  int64_t require_same_int(const char* key, int64_t min = 1) const;
  int64_t same_int_or(const char* key, int64_t fallback, int64_t min = 1) const;
  double require_float(const char* key) const { return reader_.require_float(full(key)); }
  double float_or(const char* key, double fallback) const { return reader_.float_or(full(key), fallback); }
  bool bool_or(const char* key, bool fallback) const { return reader_.bool_or(full(key), fallback); }
  std::string string_or(const char* key, const char* fallback) const { return reader_.string_or(full(key), fallback); }
  const GgufReader& reader() const { return reader_; }

  // The key has a value that is impossible, or one that expertree does not run.
  [[noreturn]] void refuse_value(const char* key, const std::string& found, const std::string& expected) const;
  [[noreturn]] void refuse_value(const char* key, int64_t found, const std::string& expected) const {
    refuse_value(key, std::to_string(found), expected);
  }
  [[noreturn]] void refuse_feature(const char* key, const std::string& found, const std::string& what) const;

 private:
  const GgufReader& reader_;
  std::string arch_;
};

}  // namespace expertree
