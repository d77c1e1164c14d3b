// The typed look-ups of GgufReader.
#include <cstring>
#include <utility>

#include "cpp/base/error.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/io/gguf_value_reading.h"
#include "cpp/io/printable.h"

namespace expertree {
namespace {

// A scalar is repeated at most so often; per-layer and per-expert lists are far shorter.
constexpr int64_t kMaxRepeats = int64_t{1} << 20;

}  // namespace

std::string_view next_gguf_string(const std::byte** cursor) {
  uint64_t size = 0;
  std::memcpy(&size, *cursor, sizeof(size));
  const char* text = reinterpret_cast<const char*>(*cursor + sizeof(size));
  *cursor += sizeof(size) + size;
  return {text, size};
}

const GgufValue& GgufReader::require(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    throw Error(ErrorCode::kModelFormat, printable(paths_[0]) + ": key " + printable(key) +
                                             " is missing; the file is incomplete or made for something else: get it "
                                             "from another source");
  }
  return *value;
}

int64_t GgufReader::require_int(std::string_view key, int64_t min, int64_t max) const {
  return gguf_int(paths_[0], key, require(key), min, max);
}

int64_t GgufReader::int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  const GgufValue* value = find(key);
  return value == nullptr ? fallback : gguf_int(paths_[0], key, *value, min, max);
}

double GgufReader::require_float(std::string_view key) const {
  const GgufValue& value = require(key);
  return gguf_float_at(paths_[0], key, value.type, value.data);
}

double GgufReader::float_or(std::string_view key, double fallback) const {
  const GgufValue* value = find(key);
  return value == nullptr ? fallback : gguf_float_at(paths_[0], key, value->type, value->data);
}

bool GgufReader::bool_or(std::string_view key, bool fallback) const {
  const GgufValue* value = find(key);
  return value == nullptr ? fallback : gguf_bool_at(paths_[0], key, value->type, value->data);
}

std::string GgufReader::require_string(std::string_view key) const {
  const GgufValue& value = require(key);
  if (value.type != GgufValueType::kString) {
    throw_wrong_gguf_type(paths_[0], key, "a string", describe_gguf_type(value));
  }
  return std::string(reinterpret_cast<const char*>(value.data), value.size_bytes);
}

std::string GgufReader::string_or(std::string_view key, const std::string& fallback) const {
  return find(key) == nullptr ? fallback : require_string(key);
}

// `convert` takes the type and the bytes of one element.
template <typename T, typename Convert>
std::vector<T> GgufReader::require_many(std::string_view key, int64_t n, Convert convert) const {
  const GgufValue& value = require(key);
  if (value.type != GgufValueType::kArray) {
    const T element = convert(value.type, value.data);
    if (n > kMaxRepeats) {
      throw Error(ErrorCode::kModelFormat, printable(paths_[0]) + ": " + std::to_string(n) + " values of key " +
                                               printable(key) +
                                               " are asked for, far more than any model has; the file "
                                               "is damaged: get it from another source");
    }
    return std::vector<T>(static_cast<size_t>(n < 0 ? 1 : n), element);
  }
  const bool has_right_count = n < 0 ? value.n_elements > 0 : value.n_elements == static_cast<uint64_t>(n);
  if (!has_right_count) {
    const std::string expected = "an array of " + (n < 0 ? "at least 1 element" : std::to_string(n) + " elements");
    throw_wrong_gguf_type(paths_[0], key, expected.c_str(), describe_gguf_type(value));
  }
  if (value.element_type == GgufValueType::kString) {
    throw_wrong_gguf_type(paths_[0], key, "an array of numbers", describe_gguf_type(value));
  }
  const uint64_t element_bytes = gguf_scalar_bytes(value.element_type);
  std::vector<T> elements;
  elements.reserve(value.n_elements);  // the file holds that many
  for (uint64_t i = 0; i < value.n_elements; ++i) {
    elements.push_back(convert(value.element_type, value.data + i * element_bytes));
  }
  return elements;
}

std::vector<int64_t> GgufReader::require_ints(std::string_view key, int64_t n, int64_t min, int64_t max) const {
  return require_many<int64_t>(key, n, [&](GgufValueType type, const std::byte* bytes) {
    return gguf_int_at(paths_[0], key, type, bytes, min, max);
  });
}

std::vector<double> GgufReader::require_floats(std::string_view key, int64_t n) const {
  return require_many<double>(
      key, n, [&](GgufValueType type, const std::byte* bytes) { return gguf_float_at(paths_[0], key, type, bytes); });
}

std::vector<bool> GgufReader::require_bools(std::string_view key, int64_t n) const {
  return require_many<bool>(
      key, n, [&](GgufValueType type, const std::byte* bytes) { return gguf_bool_at(paths_[0], key, type, bytes); });
}

}  // namespace expertree
