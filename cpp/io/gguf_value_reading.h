// Turns one encoded GGUF value into a number, or says why not. Private to cpp/io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpp/io/gguf_reader.h"

namespace expertree {

bool is_gguf_int(GgufValueType type);

// Encoded bytes of a number or bool; 0 for strings and arrays.
uint64_t gguf_scalar_bytes(GgufValueType type);

// One element of type `type` at `bytes`; throws kModelFormat naming file, key, both types or the range.
int64_t gguf_int_at(const std::string& path, std::string_view key, GgufValueType type, const std::byte* bytes,
                    int64_t min, int64_t max);
double gguf_float_at(const std::string& path, std::string_view key, GgufValueType type, const std::byte* bytes);
bool gguf_bool_at(const std::string& path, std::string_view key, GgufValueType type, const std::byte* bytes);

inline int64_t gguf_int(const std::string& path, std::string_view key, const GgufValue& value, int64_t min,
                        int64_t max) {
  return gguf_int_at(path, key, value.type, value.data, min, max);
}

// "array of string", "uint32".
std::string describe_gguf_type(const GgufValue& value);

[[noreturn]] void throw_wrong_gguf_type(const std::string& path, std::string_view key, const char* expected,
                                        const std::string& found);

}  // namespace expertree
