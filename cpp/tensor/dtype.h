// The closed table of element formats, keyed by GGUF type number.
#pragma once

#include <cstdint>
#include <string>

namespace expertree {

enum class DType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

// How the activations that meet this weight format are held (cpp/kernels/canonical.h).
enum class ActivationFormat : uint8_t {
  kF32,    // float weights
  kQ8_32,  // int8, one scale per 32 elements
  kQ8_256  // int8, one scale per 256 elements
};

struct DTypeInfo {
  DType dtype;
  const char* name;     // as GGUF names it: "Q4_K"
  int32_t block_size;   // elements per block
  int32_t block_bytes;  // bytes per block
  ActivationFormat activation;
};

// The row of a format, or nullptr when expertree does not run that GGUF type number.
const DTypeInfo* find_dtype(int32_t gguf_type);

// The row of a supported format.
const DTypeInfo& dtype_info(DType dtype);

// "IQ2_XXS", "I32", "withdrawn Q4_2", or "unknown type 77": for messages.
std::string gguf_type_name(int32_t gguf_type);

// Block size and bytes of any GGUF type that exists, supported or not; false when the number is unknown or withdrawn.
// Sizes of unsupported types let a reader check the layout of a file it cannot run.
bool gguf_type_layout(int32_t gguf_type, int32_t* block_size, int32_t* block_bytes);

// Bytes of one row of n elements; n must be a multiple of the block size.
int64_t row_bytes(DType dtype, int64_t n);

}  // namespace expertree
