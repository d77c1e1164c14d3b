// The device functions that kernels may use. The float ones round as the GPU's do; approximations (__expf, rsqrtf, ..)
// and the library's exp, sin, .. differ between devices and are left out: kernels have canonical forms of their own.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/emulation/float_types.h"

// Integers.
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += ((a >> 8 * i) & 255) * ((b >> 8 * i) & 255);
  return c;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned selector = selectors >> 4 * i & 15;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (selector & 7)) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}

namespace emu {

template <class T, class F>
unsigned per_byte(unsigned a, unsigned b, F f) {
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const int byte = f(static_cast<int>(static_cast<T>(a >> 8 * i)), static_cast<int>(static_cast<T>(b >> 8 * i)));
    result |= static_cast<unsigned>(byte & 255) << 8 * i;
  }
  return result;
}

}  // namespace emu

inline unsigned __vadd4(unsigned a, unsigned b) {
  return emu::per_byte<uint8_t>(a, b, [](int x, int y) { return x + y; });
}
inline unsigned __vsub4(unsigned a, unsigned b) {
  return emu::per_byte<uint8_t>(a, b, [](int x, int y) { return x - y; });
}
inline unsigned __vsubss4(unsigned a, unsigned b) {
  return emu::per_byte<int8_t>(a, b, [](int x, int y) { return x - y > 127 ? 127 : x - y < -128 ? -128 : x - y; });
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  return emu::per_byte<uint8_t>(a, b, [](int x, int y) { return x == y ? 255 : 0; });
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }

// Floats: one rounding each, to nearest even.
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }

// Conversions. Out of range and NaN as on the GPU: saturated, 0.
inline int __float2int_rn(float x) {
  const float r = __builtin_rintf(x);
  return r != r ? 0 : r >= 0x1p31f ? INT32_MAX : r < -0x1p31f ? INT32_MIN : static_cast<int>(r);
}
inline float __int2float_rn(int i) { return static_cast<float>(i); }
inline int __float_as_int(float f) { return static_cast<int>(emu::bits_of(f)); }
inline unsigned __float_as_uint(float f) { return emu::bits_of(f); }
inline float __int_as_float(int i) { return emu::float_of(static_cast<uint32_t>(i)); }
inline float __uint_as_float(unsigned u) { return emu::float_of(u); }

// Loads and stores with a cache hint.
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
