// half and bfloat16: storage and exact conversions. Kernels compute in float.
#pragma once

#include <cstdint>

#include "cuda/emulation/vector_types.h"

struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;

namespace emu {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline float float_of_half(uint16_t half_bits) {
  const uint32_t sign = static_cast<uint32_t>(half_bits & 0x8000) << 16;
  const uint32_t exponent = (half_bits >> 10) & 31, mantissa = half_bits & 1023;
  if (exponent == 0) return float_of(bits_of(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13));
  return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t half_of_float(float value) {  // to nearest even; NVIDIA's NaN
  uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000u) return 0x7fff;
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);
  // Subnormal: adding 0.5 puts half an ulp of 2^-24 at the float's last bit.
  if (bits < 0x38800000u) return static_cast<uint16_t>(sign | (bits_of(float_of(bits) + 0.5f) - 0x3f000000u));
  bits += 0xfff + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((bits - 0x38000000u) >> 13));
}

}  // namespace emu

inline float __half2float(__half h) { return emu::float_of_half(h.bits); }
inline __half __float2half_rn(float f) { return {emu::half_of_float(f)}; }
inline __half __float2half(float f) { return __float2half_rn(f); }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
inline float __low2float(__half2 h) { return __half2float(h.x); }
inline float __high2float(__half2 h) { return __half2float(h.y); }
inline float2 __half22float2(__half2 h) { return {__low2float(h), __high2float(h)}; }
inline float __bfloat162float(__nv_bfloat16 b) { return emu::float_of(static_cast<uint32_t>(b.bits) << 16); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  const uint32_t bits = emu::bits_of(f);
  if ((bits & 0x7fffffff) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float f) { return __float2bfloat16_rn(f); }
