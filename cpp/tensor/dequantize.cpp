#include "cpp/tensor/dequantize.h"

#include <cstring>

#include "cpp/base/error.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"
#include "cpp/tensor/integer_blocks.h"

namespace expertree {
namespace {

int low_or_high_nibble(uint8_t byte, int high) { return high != 0 ? byte >> 4 : byte & 15; }

// Nibble of element i in the 32-element formats: 0..15 are the low nibbles, 16..31 the high ones.
int nibble32(const uint8_t* qs, int i) { return low_or_high_nibble(qs[i % 16], i / 16); }

// Bit i of a 32-bit little-endian field.
int bit32(const uint8_t* field, int i) { return (field[i / 8] >> (i % 8)) & 1; }

void decode(const BlockQ4_0& b, float* y) {
  const float d = half_to_float(b.d);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(nibble32(b.qs, i) - 8);
}

void decode(const BlockQ4_1& b, float* y) {
  const float d = half_to_float(b.d);
  const float m = half_to_float(b.m);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(nibble32(b.qs, i)) + m;
}

void decode(const BlockQ5_0& b, float* y) {
  const float d = half_to_float(b.d);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>((nibble32(b.qs, i) | bit32(b.qh, i) << 4) - 16);
}

void decode(const BlockQ5_1& b, float* y) {
  const float d = half_to_float(b.d);
  const float m = half_to_float(b.m);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(nibble32(b.qs, i) | bit32(b.qh, i) << 4) + m;
}

void decode(const BlockQ8_0& b, float* y) {
  const float d = half_to_float(b.d);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(b.qs[i]);
}

void decode(const BlockIQ4_NL& b, float* y) {
  const float d = half_to_float(b.d);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(kIQ4Values[nibble32(b.qs, i)]);
}

void decode(const BlockMXFP4& b, float* y) {
  const float d = e8m0_to_float_half(b.e);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(kMXFP4Values[nibble32(b.qs, i)]);
}

// Q2_K, Q3_K and Q6_K walk 256 elements as two halves of 128, each as four runs of 32 that share 32 bytes:
// run r of a half sits r fields of 2 bits up in byte (i % 32).
int two_bits(const uint8_t* bytes, int i) { return (bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3; }

void decode(const BlockQ2_K& b, float* y) {
  const float d = half_to_float(b.d);
  const float dmin = half_to_float(b.dmin);
  for (int i = 0; i < 256; ++i) {
    const uint8_t scale = b.scales[i / 16];
    const float offset = dmin * static_cast<float>(scale >> 4);
    y[i] = d * static_cast<float>(scale & 15) * static_cast<float>(two_bits(b.qs, i)) - offset;
  }
}

// Low 4 bits of scale j in bytes 0..7 (8..15 in the high nibbles), high 2 bits in bytes 8..11.
int q3k_scale(const uint8_t* scales, int j) {
  return low_or_high_nibble(scales[j % 8], j / 8) | ((scales[8 + j % 4] >> (j / 4 * 2)) & 3) << 4;
}

void decode(const BlockQ3_K& b, float* y) {
  const float d = half_to_float(b.d);
  for (int i = 0; i < 256; ++i) {
    const int high = (b.hmask[i % 32] >> (i / 32)) & 1;
    const int q = (two_bits(b.qs, i) | high << 2) - 4;
    y[i] = d * static_cast<float>(q3k_scale(b.scales, i / 16) - 32) * static_cast<float>(q);
  }
}

// Scale and minimum of sub-block j, 6 bits each: 0..3 lie in bytes 0..3 and 4..7; of 4..7 the low nibbles lie in
// bytes 8..11 and the upper two bits on top of bytes 0..3 and 4..7.
void q4k_scale_min(const uint8_t* scales, int j, int* scale, int* minimum) {
  if (j < 4) {
    *scale = scales[j] & 63;
    *minimum = scales[j + 4] & 63;
  } else {
    *scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
    *minimum = (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
  }
}

// Runs of 64 elements share 32 bytes: the first 32 in the low nibbles.
int nibble64(const uint8_t* qs, int i) { return low_or_high_nibble(qs[i / 64 * 32 + i % 32], i % 64 / 32); }

void decode(const BlockQ4_K& b, float* y) {
  const float d = half_to_float(b.d);
  const float dmin = half_to_float(b.dmin);
  for (int i = 0; i < 256; ++i) {
    int scale, minimum;
    q4k_scale_min(b.scales, i / 32, &scale, &minimum);
    const int q = nibble64(b.qs, i);
    y[i] = d * static_cast<float>(scale) * static_cast<float>(q) - dmin * static_cast<float>(minimum);
  }
}

void decode(const BlockQ5_K& b, float* y) {
  const float d = half_to_float(b.d);
  const float dmin = half_to_float(b.dmin);
  for (int i = 0; i < 256; ++i) {
    int scale, minimum;
    q4k_scale_min(b.scales, i / 32, &scale, &minimum);
    const int q = nibble64(b.qs, i) | ((b.qh[i % 32] >> (i / 32)) & 1) << 4;
    y[i] = d * static_cast<float>(scale) * static_cast<float>(q) - dmin * static_cast<float>(minimum);
  }
}

void decode(const BlockQ6_K& b, float* y) {
  const float d = half_to_float(b.d);
  for (int i = 0; i < 256; ++i) {
    const int run = i % 128 / 32;
    const int low = low_or_high_nibble(b.ql[i / 128 * 64 + run % 2 * 32 + i % 32], run / 2);
    const int q = (low | two_bits(b.qh, i) << 4) - 32;
    y[i] = d * static_cast<float>(b.scales[i / 16]) * static_cast<float>(q);
  }
}

void decode(const BlockIQ4_XS& b, float* y) {
  const float d = half_to_float(b.d);
  for (int i = 0; i < 256; ++i) {
    const int j = i / 32;
    const int scale = low_or_high_nibble(b.scales_l[j / 2], j % 2) | ((b.scales_h >> (2 * j)) & 3) << 4;
    y[i] = d * static_cast<float>(scale - 32) * static_cast<float>(kIQ4Values[nibble32(b.qs + j * 16, i % 32)]);
  }
}

void decode(const BlockNVFP4& b, float* y) {
  for (int i = 0; i < 64; ++i) {
    const uint8_t byte = b.qs[i / 16 * 8 + i % 8];
    y[i] = ue4m3_to_float_half(b.d[i / 16]) * static_cast<float>(kMXFP4Values[low_or_high_nibble(byte, i % 16 / 8)]);
  }
}

// The code books and ternary formats. Products of the integers are exact, so the order of the factors does not matter.
template <typename Block>
void decode(const Block& b, float* y) {
  IntegerBlock integers;
  decode_integers(b, &integers);
  for (int i = 0; i < 256; ++i) y[i] = integers.d * static_cast<float>(integers.scale[i / 16] * integers.q[i]);
}

template <typename Block>
void decode_row(const std::byte* src, int64_t n, int block_size, float* dst) {
  for (int64_t i = 0; i < n / block_size; ++i) {
    Block block;
    std::memcpy(&block, src + i * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
    decode(block, dst + i * block_size);
  }
}

template <typename Convert>
void convert_row16(const std::byte* src, int64_t n, Convert convert, float* dst) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, sizeof bits);
    dst[i] = convert(bits);
  }
}

}  // namespace

void dequantize_row(DType dtype, const std::byte* src, int64_t n, float* dst) {
  const int block_size = dtype_info(dtype).block_size;
  ET_CHECK(n >= 0 && n % block_size == 0);
  switch (dtype) {
    case DType::kF32:
      if (n > 0) std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kF16: return convert_row16(src, n, half_to_float, dst);
    case DType::kBF16: return convert_row16(src, n, bfloat16_to_float, dst);
    case DType::kQ4_0: return decode_row<BlockQ4_0>(src, n, block_size, dst);
    case DType::kQ4_1: return decode_row<BlockQ4_1>(src, n, block_size, dst);
    case DType::kQ5_0: return decode_row<BlockQ5_0>(src, n, block_size, dst);
    case DType::kQ5_1: return decode_row<BlockQ5_1>(src, n, block_size, dst);
    case DType::kQ8_0: return decode_row<BlockQ8_0>(src, n, block_size, dst);
    case DType::kQ2_K: return decode_row<BlockQ2_K>(src, n, block_size, dst);
    case DType::kQ3_K: return decode_row<BlockQ3_K>(src, n, block_size, dst);
    case DType::kQ4_K: return decode_row<BlockQ4_K>(src, n, block_size, dst);
    case DType::kQ5_K: return decode_row<BlockQ5_K>(src, n, block_size, dst);
    case DType::kQ6_K: return decode_row<BlockQ6_K>(src, n, block_size, dst);
    case DType::kIQ4_NL: return decode_row<BlockIQ4_NL>(src, n, block_size, dst);
    case DType::kIQ4_XS: return decode_row<BlockIQ4_XS>(src, n, block_size, dst);
    case DType::kIQ1_S: return decode_row<BlockIQ1_S>(src, n, block_size, dst);
    case DType::kIQ1_M: return decode_row<BlockIQ1_M>(src, n, block_size, dst);
    case DType::kIQ2_XXS: return decode_row<BlockIQ2_XXS>(src, n, block_size, dst);
    case DType::kIQ2_XS: return decode_row<BlockIQ2_XS>(src, n, block_size, dst);
    case DType::kIQ2_S: return decode_row<BlockIQ2_S>(src, n, block_size, dst);
    case DType::kIQ3_XXS: return decode_row<BlockIQ3_XXS>(src, n, block_size, dst);
    case DType::kIQ3_S: return decode_row<BlockIQ3_S>(src, n, block_size, dst);
    case DType::kTQ1_0: return decode_row<BlockTQ1_0>(src, n, block_size, dst);
    case DType::kTQ2_0: return decode_row<BlockTQ2_0>(src, n, block_size, dst);
    case DType::kNVFP4: return decode_row<BlockNVFP4>(src, n, block_size, dst);
    case DType::kMXFP4: return decode_row<BlockMXFP4>(src, n, block_size, dst);
  }
  ET_CHECK(!"unreachable: every DType has a case");
}

}  // namespace expertree
