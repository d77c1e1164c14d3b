// Conversions between binary32 and the 16-bit and 8-bit float encodings of GGUF, in integer arithmetic only,
// so that no compiler flag, rounding mode or instruction set changes a bit.
// `static inline`: every translation unit, and so every instruction set, has its own copy.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpp/base/host_device.h"

namespace expertree {

EXPERTREE_HOST_DEVICE static inline uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

EXPERTREE_HOST_DEVICE static inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Exact. A signalling NaN becomes quiet, as F16C and CUDA do.
EXPERTREE_HOST_DEVICE static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  uint32_t exponent = (half >> 10) & 0x1fu;
  uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) {
    return float_from_bits(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x00400000u : 0u));
  }
  if (exponent == 0) {
    if (mantissa == 0) return float_from_bits(sign);
    // Subnormal half, mantissa * 2^-24: every one is a normal float.
    exponent = 1;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --exponent;  // wraps below zero; the sum below brings it back
    }
    mantissa &= 0x3ffu;
  }
  return float_from_bits(sign | ((exponent + (127u - 15u)) << 23) | (mantissa << 13));
}

// Round to nearest, ties to even; overflow gives infinity; NaN stays NaN (quiet, upper payload bits kept).
EXPERTREE_HOST_DEVICE static inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65536, infinity included
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);             // < 2^-25: nearer to 0 than to 2^-24
  uint32_t kept;     // result before rounding
  uint32_t dropped;  // what was cut off, of `width` bits
  uint32_t width;
  if (magnitude < 0x38800000u) {  // < 2^-14: subnormal half, in units of 2^-24
    width = 126u - (magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    kept = significand >> width;
    dropped = significand & ((1u << width) - 1u);
  } else {
    width = 13;
    kept = (magnitude - ((127u - 15u) << 23)) >> 13;
    dropped = magnitude & 0x1fffu;
  }
  const uint32_t tie = 1u << (width - 1u);
  // A carry out of the mantissa runs into the exponent, which is what rounding up to the next binade or to infinity is.
  if (dropped > tie || (dropped == tie && (kept & 1u) != 0)) ++kept;
  return static_cast<uint16_t>(sign | kept);
}

// Exact.
EXPERTREE_HOST_DEVICE static inline float bfloat16_to_float(uint16_t bfloat16) {
  return float_from_bits(static_cast<uint32_t>(bfloat16) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
EXPERTREE_HOST_DEVICE static inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// 2^(e - 128): half of the E8M0 scale 2^(e - 127), because kMXFP4Values holds twice the E2M1 value.
// e = 0 and 1 give the subnormals 2^-128 and 2^-127. E8M0 calls e = 255 NaN; ggml reads it as 2^127, and so do we.
EXPERTREE_HOST_DEVICE static inline float e8m0_to_float_half(uint8_t e) {
  if (e < 2) return float_from_bits(0x00200000u << e);
  return float_from_bits(static_cast<uint32_t>(e - 1) << 23);
}

// Half of NVFP4's unsigned E4M3 scale (bias 7), because kMXFP4Values holds twice the E2M1 value. The top bit is not
// read; 0x7f, which would be NaN, is zero, as in ggml.
EXPERTREE_HOST_DEVICE static inline float ue4m3_to_float_half(uint8_t x) {
  if (x == 0x7f) return 0.0f;
  const int exponent = (x >> 3) & 15;
  const int mantissa = x & 7;
  // m * 2^-10 for subnormals, else (8 + m) * 2^(e - 11)
  const float scale = float_from_bits(static_cast<uint32_t>(127 + (exponent == 0 ? -10 : exponent - 11)) << 23);
  return static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) * scale;
}

}  // namespace expertree
