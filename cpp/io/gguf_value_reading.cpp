#include "cpp/io/gguf_value_reading.h"

#include <cmath>
#include <cstring>

#include "cpp/base/error.h"
#include "cpp/io/printable.h"

namespace expertree {
namespace {

constexpr const char* kTypeNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                      "bool",  "string", "array",  "uint64", "int64",  "float64"};
constexpr uint8_t kTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

[[noreturn]] void throw_out_of_range(const std::string& path, std::string_view key, const std::string& value,
                                     int64_t min, int64_t max) {
  throw Error(ErrorCode::kModelFormat, printable(path) + ": key " + printable(key) + " is " + value + ", from " +
                                           std::to_string(min) + " to " + std::to_string(max) +
                                           " is expected; the file is damaged or made for something else: get it from "
                                           "another source");
}

}  // namespace

const char* gguf_value_type_name(GgufValueType type) { return kTypeNames[static_cast<size_t>(type)]; }

uint64_t gguf_scalar_bytes(GgufValueType type) { return kTypeBytes[static_cast<size_t>(type)]; }

bool is_gguf_int(GgufValueType type) {
  return gguf_scalar_bytes(type) > 0 && type != GgufValueType::kF32 && type != GgufValueType::kF64 &&
         type != GgufValueType::kBool;
}

std::string describe_gguf_type(const GgufValue& value) {
  if (value.type != GgufValueType::kArray) return gguf_value_type_name(value.type);
  return "array of " + std::to_string(value.n_elements) + " " + gguf_value_type_name(value.element_type);
}

void throw_wrong_gguf_type(const std::string& path, std::string_view key, const char* expected,
                           const std::string& found) {
  throw Error(ErrorCode::kModelFormat, printable(path) + ": key " + printable(key) + " must be " + expected +
                                           " but is " + found +
                                           "; the file is damaged or made for something else: "
                                           "get it from another source");
}

int64_t gguf_int_at(const std::string& path, std::string_view key, GgufValueType type, const std::byte* bytes,
                    int64_t min, int64_t max) {
  int64_t value = 0;
  switch (type) {
    case GgufValueType::kU8: value = load<uint8_t>(bytes); break;
    case GgufValueType::kI8: value = load<int8_t>(bytes); break;
    case GgufValueType::kU16: value = load<uint16_t>(bytes); break;
    case GgufValueType::kI16: value = load<int16_t>(bytes); break;
    case GgufValueType::kU32: value = load<uint32_t>(bytes); break;
    case GgufValueType::kI32: value = load<int32_t>(bytes); break;
    case GgufValueType::kI64: value = load<int64_t>(bytes); break;
    case GgufValueType::kU64:
      if (load<uint64_t>(bytes) > INT64_MAX) {
        throw_out_of_range(path, key, std::to_string(load<uint64_t>(bytes)), min, max);
      }
      value = static_cast<int64_t>(load<uint64_t>(bytes));
      break;
    default: throw_wrong_gguf_type(path, key, "an integer", gguf_value_type_name(type));
  }
  if (value < min || value > max) throw_out_of_range(path, key, std::to_string(value), min, max);
  return value;
}

double gguf_float_at(const std::string& path, std::string_view key, GgufValueType type, const std::byte* bytes) {
  double value = 0.0;
  if (type == GgufValueType::kF32) {
    value = static_cast<double>(load<float>(bytes));
  } else if (type == GgufValueType::kF64) {
    value = load<double>(bytes);
  } else {
    throw_wrong_gguf_type(path, key, "a float", gguf_value_type_name(type));
  }
  if (!std::isfinite(value)) throw_wrong_gguf_type(path, key, "a finite number", std::to_string(value));
  return value;
}

bool gguf_bool_at(const std::string& path, std::string_view key, GgufValueType type, const std::byte* bytes) {
  if (type != GgufValueType::kBool) throw_wrong_gguf_type(path, key, "a bool", gguf_value_type_name(type));
  return load<uint8_t>(bytes) != 0;
}

}  // namespace expertree
