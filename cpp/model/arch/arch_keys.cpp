#include "cpp/model/arch/arch_keys.h"

#include <algorithm>
#include <limits>

#include "cpp/base/error.h"

namespace expertree {
namespace {}  // namespace

int64_t ArchKeys::require_int(const char* key, int64_t min) const {
  return reader_.require_int(full(key), min, kMaxInt);
}

int64_t ArchKeys::int_or(const char* key, int64_t fallback, int64_t min) const {
  return reader_.int_or(full(key), fallback, min, kMaxInt);
}

std::vector<int64_t> ArchKeys::require_ints(const char* key, int64_t n, int64_t min) const {
  return reader_.require_ints(full(key), n, min, kMaxInt);
}

int64_t ArchKeys::require_same_int(const char* key, int64_t min) const {
  const std::vector<int64_t> values = require_ints(key, -1, min);
  if (std::count(values.begin(), values.end(), values[0]) != std::ssize(values)) {
    refuse_feature(key, "an array of different values", "layers that differ in it");
  }
  return values[0];
}

int64_t ArchKeys::same_int_or(const char* key, int64_t fallback, int64_t min) const {
  return has(key) ? require_same_int(key, min) : fallback;
}

void ArchKeys::refuse_value(const char* key, const std::string& found, const std::string& expected) const {
  throw Error(ErrorCode::kModelFormat, reader_.paths()[0] + ": key '" + full(key) + "' is " + found + "; expected " +
                                           expected + ". The file is damaged or was converted wrongly; get it again");
}

void ArchKeys::refuse_feature(const char* key, const std::string& found, const std::string& what) const {
  throw Error(ErrorCode::kUnsupported, reader_.paths()[0] + ": key '" + full(key) + "' is " + found +
                                           "; expertree does not run " + what + " for " + arch_ +
                                           ". Use a file of the model without it");
}

}  // namespace expertree
