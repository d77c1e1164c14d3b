// exp, log and SiLU as every instruction set and CUDA must compute them, bit for bit (contract X3).
//
// Each function is a straight line of IEEE binary32 operations, round to nearest even, subnormals kept. Mirrors use the
// same operations in the same order, on as many lanes as they like. Vocabulary, with the x86 form of each step:
//   fma(a, b, c)        one rounding                                            vfmadd
//   a * b, a + b, a / b one rounding each, never contracted into an fma         mul, add, div (never rcp)
//   max_pass_nan(c, x)  (c > x) ? c : x, so x = NaN gives NaN                   maxps(c, x): x is the SECOND source
//   min_pass_nan(c, x)  (c < x) ? c : x                                         minps(c, x): x is the SECOND source
//   select(p, a, b)     p ? a : b                                               blend on an ordered, quiet compare
//   integer steps       uint32/int32 lanes, wrapping, arithmetic right shift    paddd, psrad, pslld
// CUDA: fmaf / __fmaf_rn, __fmul_rn, __fadd_rn, __fdiv_rn, plain ternaries; -ftz=false. fminf and fmaxf drop NaN:
// do not use them here. NEON: vminq/vmaxq order signed zeros but no step sees one of each, and they keep NaN: usable.
// A NaN result is some quiet NaN; which one is outside the contract.
//
// `static inline`: every translation unit, and so every instruction set, has its own copy.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpp/base/host_device.h"

namespace expertree {

EXPERTREE_HOST_DEVICE static inline uint32_t canonical_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

EXPERTREE_HOST_DEVICE static inline float canonical_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

EXPERTREE_HOST_DEVICE static inline float max_pass_nan(float c, float x) { return c > x ? c : x; }
EXPERTREE_HOST_DEVICE static inline float min_pass_nan(float c, float x) { return c < x ? c : x; }

// ln 2 = kLn2High + kLn2Low, kLn2High being ln 2 rounded to a float. It happens to be a multiple of 2^-21, so that
// t - n * kLn2High below, for n != 0, is a multiple of 2^-25 under 0.35: it fits 24 bits and its fma is exact.
constexpr float kLn2High = 0x1.62e43p-1f;
constexpr float kLn2Low = -0x1.05c61p-29f;

// Below this, exp(x) would be subnormal and canonical_exp gives +0. The smallest float whose exp is >= 2^-126.
constexpr float kExpLowest = -0x1.5d589ep+6f;  // -87.3365402

// e^x, error < 1 ulp. Exact cases: exp(+-0) = 1, exp(x < kExpLowest) = exp(-inf) = +0 (flushed: no subnormal results),
// exp(x > 88.7228394) = exp(+inf) = +inf, exp(NaN) = NaN.
EXPERTREE_HOST_DEVICE static inline float canonical_exp(float x) {
  // 1. Clamp, so that the integer below stays in range; 89 already overflows to +inf in step 5.
  float t = min_pass_nan(89.0f, x);
  t = max_pass_nan(-88.0f, t);
  // 2. n = rint(t * log2 e), ties to even: adding 1.5 * 2^23 leaves n in the low bits of the sum. One fma, so one
  //    rounding; needs no rounding instruction.
  const float shifted = std::fma(t, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  const int32_t n_int = static_cast<int32_t>(canonical_bits(shifted) - 0x4b400000u);
  // 3. r = t - n ln 2, |r| <= 0.3466 (Cody-Waite in two parts; the first is exact).
  float r = std::fma(n, -kLn2High, t);
  r = std::fma(n, -kLn2Low, r);
  // 4. p = e^r: degree 6, minimax in relative error (3.2e-9) with the first two coefficients held at 1.
  float p = 0x1.6a524ep-10f;
  p = std::fma(p, r, 0x1.12396ep-7f);
  p = std::fma(p, r, 0x1.5558aap-5f);
  p = std::fma(p, r, 0x1.555492p-3f);
  p = std::fma(p, r, 0x1.fffffcp-2f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  // 5. p * 2^n in two exact factors, because n = 128 occurs for finite results. n = n1 + n2, n1 = floor(n / 2).
  const int32_t n1 = n_int >> 1;
  const int32_t n2 = static_cast<int32_t>(static_cast<uint32_t>(n_int) - static_cast<uint32_t>(n1));
  const float scale1 = canonical_from_bits((static_cast<uint32_t>(n1) + 127u) << 23);
  const float scale2 = canonical_from_bits((static_cast<uint32_t>(n2) + 127u) << 23);
  const float result = (p * scale1) * scale2;
  // 6. Flush. NaN fails the comparison and keeps its NaN result.
  return x < kExpLowest ? 0.0f : result;
}

// ln(1 + f) for -0.2929 <= f <= 0.4143, plus e * ln 2; shared by canonical_log and the sampler's noise.
// P: degree 7, minimax in relative error of ln(1 + f) = f - f^2/2 + f^3 P(f) (5.9e-9).
EXPERTREE_HOST_DEVICE static inline float canonical_log1p_poly(float f, float e) {
  float p = -0x1.38ca52p-4f;
  p = std::fma(p, f, 0x1.055fdcp-3f);
  p = std::fma(p, f, -0x1.0d82acp-3f);
  p = std::fma(p, f, 0x1.22d91cp-3f);
  p = std::fma(p, f, -0x1.547282p-3f);
  p = std::fma(p, f, 0x1.99a01cp-3f);
  p = std::fma(p, f, -0x1.000226p-2f);
  p = std::fma(p, f, 0x1.555554p-2f);
  const float f2 = f * f;
  const float f3 = f2 * f;
  float tail = std::fma(f3, p, e * kLn2Low);
  tail = std::fma(f2, -0.5f, tail);
  const float low = f + tail;
  return std::fma(e, kLn2High, low);
}

// Natural logarithm, error < 1 ulp for every positive float, subnormals included. Exact cases: log(1) = +0,
// log(+-0) = -inf, log(x < 0) = NaN, log(+inf) = +inf, log(NaN) = NaN.
EXPERTREE_HOST_DEVICE static inline float canonical_log(float x) {
  // 1. Make subnormals normal. (Zero, negatives, inf and NaN run through steps 1 to 4 and are replaced in step 5.)
  const bool tiny = x < 0x1p-126f;
  const float normal = tiny ? x * 0x1p+23f : x;
  const float exponent_shift = tiny ? -23.0f : 0.0f;
  // 2. x = m * 2^e with m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2) rounded down to a float.
  const uint32_t offset = canonical_bits(normal) - 0x3f3504f3u;
  const float e = static_cast<float>(static_cast<int32_t>(offset) >> 23) + exponent_shift;  // both exact
  const float m = canonical_from_bits((offset & 0x007fffffu) + 0x3f3504f3u);
  // 3. f = m - 1, exact.
  const float f = m - 1.0f;
  // 4. Polynomial and exponent.
  float result = canonical_log1p_poly(f, e);
  // 5. Special values, by blends in this order.
  result = x < std::numeric_limits<float>::infinity() ? result : x;  // +inf and NaN: themselves
  result = x == 0.0f ? -std::numeric_limits<float>::infinity() : result;
  result = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : result;
  return result;
}

// x * sigmoid(x) as x / (1 + exp(-x)). silu(+-0) = +-0, silu(+inf) = +inf, silu(NaN) = NaN.
// For x < -88.7228394 exp(-x) is +inf and the result -0 (the true value is above -3e-37); the clamp at -100 makes that
// hold for -inf too, where inf / inf would be NaN.
EXPERTREE_HOST_DEVICE static inline float canonical_silu(float x) {
  const float t = max_pass_nan(-100.0f, x);
  const float denominator = 1.0f + canonical_exp(-t);
  return t / denominator;
}

// x / (1 + exp(-z)), with the exponential's clamps.
EXPERTREE_HOST_DEVICE static inline float canonical_gate(float x, float z) { return x / (1.0f + canonical_exp(-z)); }

// canonical.h, C12.
constexpr float kGeluSlope = 1.59576912f;  // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;
constexpr float kOaiSlope = 1.702f;
constexpr float kOaiLimit = 7.0f;

EXPERTREE_HOST_DEVICE static inline float canonical_gelu(float x) {
  const float t = max_pass_nan(-100.0f, x);
  return canonical_gate(t, (kGeluSlope * t) * std::fma(kGeluCube, t * t, 1.0f));
}

EXPERTREE_HOST_DEVICE static inline float canonical_swiglu_oai(float gate, float up) {
  const float t = max_pass_nan(-100.0f, min_pass_nan(kOaiLimit, gate));
  const float v = max_pass_nan(-kOaiLimit, min_pass_nan(kOaiLimit, up));
  return canonical_gate(t, kOaiSlope * t) * (v + 1.0f);
}

// canonical.h, C13: c tanh(x / c).
EXPERTREE_HOST_DEVICE static inline float canonical_softcap(float x, float c) {
  return c * (1.0f - 2.0f / (canonical_exp(x * (2.0f / c)) + 1.0f));
}

}  // namespace expertree
