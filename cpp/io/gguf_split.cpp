// Split sets: NAME-00001-of-00003.gguf; split.no counts from 0, only part 0 carries the model's keys.
#include <cstdio>
#include <string>

#include "cpp/base/error.h"
#include "cpp/io/gguf_parse.h"
#include "cpp/io/gguf_value_reading.h"
#include "cpp/io/printable.h"

namespace expertree {
namespace {

constexpr int64_t kMaxParts = 99999;  // five digits in the name

std::string split_suffix(int64_t no, int64_t count) {
  char text[64];
  std::snprintf(text, sizeof(text), "-%05lld-of-%05lld.gguf", static_cast<long long>(no + 1),
                static_cast<long long>(count));
  return text;
}

int64_t split_int(const File& file, const GgufPart& part, const char* key, int64_t max) {
  const GgufValue* value = part.find(key);
  if (value == nullptr) {
    throw Error(ErrorCode::kModelFormat, printable(file.path()) + ": key '" + key +
                                             "' is missing from this split file part; download the part again");
  }
  return gguf_int(file.path(), key, *value, 0, max);
}

}  // namespace

std::string gguf_split_path(const std::string& prefix, int64_t no, int64_t count) {
  return prefix + split_suffix(no, count);
}

std::string gguf_split_prefix(const std::string& path, int64_t no, int64_t count) {
  const std::string suffix = split_suffix(no, count);
  if (path.size() <= suffix.size()) return {};
  const size_t prefix_size = path.size() - suffix.size();
  return path.compare(prefix_size, suffix.size(), suffix) == 0 ? path.substr(0, prefix_size) : std::string();
}

GgufSplit read_gguf_split(const File& file, const GgufPart& part) {
  GgufSplit split{0, 1, -1};
  if (part.find("split.count") == nullptr) return split;
  split.count = split_int(file, part, "split.count", kMaxParts);
  if (split.count <= 1) return {0, 1, -1};
  split.no = split_int(file, part, "split.no", kMaxParts);
  split.n_tensors = split_int(file, part, "split.tensors.count", INT64_MAX);
  if (split.no >= split.count) {
    throw Error(ErrorCode::kModelFormat, printable(file.path()) + ": this is a split file part with split.no " +
                                             std::to_string(split.no) + " of " + std::to_string(split.count) +
                                             " parts; the file is damaged: download it again");
  }
  return split;
}

}  // namespace expertree
