// canonical_math.h on four lanes, operation for operation. Only its constants are used here: a call of its functions
// would, without optimisation, export std::fma as a weak symbol.
#pragma once

#include "cpp/kernels/canonical_math.h"
#include "cpp/kernels/neon/vector.h"

namespace expertree::neon {

static inline float32x4_t all(float x) { return vdupq_n_f32(x); }

// a * b + c, rounded once.
static inline float32x4_t fused(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }

// Bits as integers; unsigned, for those of a NaN may wrap below.
static inline uint32x4_t bits_of(float32x4_t x) { return vreinterpretq_u32_f32(x); }

// 2^n.
static inline float32x4_t power_of_two(int32x4_t n) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(vreinterpretq_u32_s32(n), vdupq_n_u32(127)), 23));
}

static inline float32x4_t exp_lanes(float32x4_t x) {
  const float32x4_t shifter = all(0x1.8p+23f);
  const float32x4_t t = max_pass_nan(all(-88.0f), min_pass_nan(all(89.0f), x));
  const float32x4_t shifted = fused(t, all(0x1.715476p+0f), shifter);
  const float32x4_t n = vsubq_f32(shifted, shifter);
  const int32x4_t n_int = vreinterpretq_s32_u32(vsubq_u32(bits_of(shifted), vdupq_n_u32(0x4b400000u)));
  float32x4_t r = fused(n, all(-kLn2High), t);
  r = fused(n, all(-kLn2Low), r);
  float32x4_t p = all(0x1.6a524ep-10f);
  p = fused(p, r, all(0x1.12396ep-7f));
  p = fused(p, r, all(0x1.5558aap-5f));
  p = fused(p, r, all(0x1.555492p-3f));
  p = fused(p, r, all(0x1.fffffcp-2f));
  p = fused(p, r, all(1.0f));
  p = fused(p, r, all(1.0f));
  const int32x4_t n1 = vshrq_n_s32(n_int, 1);
  const float32x4_t result = vmulq_f32(vmulq_f32(p, power_of_two(n1)), power_of_two(vsubq_s32(n_int, n1)));
  return vbslq_f32(vcltq_f32(x, all(kExpLowest)), all(0.0f), result);
}

static inline float32x4_t log1p_poly_lanes(float32x4_t f, float32x4_t e) {
  float32x4_t p = all(-0x1.38ca52p-4f);
  p = fused(p, f, all(0x1.055fdcp-3f));
  p = fused(p, f, all(-0x1.0d82acp-3f));
  p = fused(p, f, all(0x1.22d91cp-3f));
  p = fused(p, f, all(-0x1.547282p-3f));
  p = fused(p, f, all(0x1.99a01cp-3f));
  p = fused(p, f, all(-0x1.000226p-2f));
  p = fused(p, f, all(0x1.555554p-2f));
  const float32x4_t f2 = vmulq_f32(f, f);
  const float32x4_t f3 = vmulq_f32(f2, f);
  float32x4_t tail = fused(f3, p, vmulq_f32(e, all(kLn2Low)));
  tail = fused(f2, all(-0.5f), tail);
  return fused(e, all(kLn2High), vaddq_f32(f, tail));
}

static inline float32x4_t log_lanes(float32x4_t x) {
  const float32x4_t zero = all(0.0f);
  const float32x4_t infinity = all(__builtin_inff());
  const uint32x4_t tiny = vcltq_f32(x, all(0x1p-126f));
  const float32x4_t normal = vbslq_f32(tiny, vmulq_f32(x, all(0x1p+23f)), x);
  const float32x4_t exponent_shift = vbslq_f32(tiny, all(-23.0f), zero);
  const uint32x4_t root = vdupq_n_u32(0x3f3504f3u);
  const uint32x4_t offset = vsubq_u32(bits_of(normal), root);
  const int32x4_t exponent = vshrq_n_s32(vreinterpretq_s32_u32(offset), 23);
  const float32x4_t e = vaddq_f32(vcvtq_f32_s32(exponent), exponent_shift);
  const uint32x4_t mantissa = vandq_u32(offset, vdupq_n_u32(0x007fffffu));
  const float32x4_t m = vreinterpretq_f32_u32(vaddq_u32(mantissa, root));
  float32x4_t result = log1p_poly_lanes(vsubq_f32(m, all(1.0f)), e);
  result = vbslq_f32(vcltq_f32(x, infinity), result, x);
  result = vbslq_f32(vceqq_f32(x, zero), all(-__builtin_inff()), result);
  return vbslq_f32(vcltq_f32(x, zero), all(__builtin_nanf("")), result);
}

// x / (1 + exp(-z)).
static inline float32x4_t gate_lanes(float32x4_t x, float32x4_t z) {
  return vdivq_f32(x, vaddq_f32(all(1.0f), exp_lanes(vnegq_f32(z))));
}

static inline float32x4_t silu_lanes(float32x4_t x) {
  const float32x4_t t = max_pass_nan(all(-100.0f), x);
  return gate_lanes(t, t);
}

static inline float32x4_t gelu_lanes(float32x4_t x) {
  const float32x4_t t = max_pass_nan(all(-100.0f), x);
  const float32x4_t cubic = fused(all(kGeluCube), vmulq_f32(t, t), all(1.0f));
  return gate_lanes(t, vmulq_f32(vmulq_f32(all(kGeluSlope), t), cubic));
}

static inline float32x4_t swiglu_oai_lanes(float32x4_t gate, float32x4_t up) {
  const float32x4_t t = max_pass_nan(all(-100.0f), min_pass_nan(all(kOaiLimit), gate));
  const float32x4_t v = max_pass_nan(all(-kOaiLimit), min_pass_nan(all(kOaiLimit), up));
  const float32x4_t gated = gate_lanes(t, vmulq_f32(all(kOaiSlope), t));
  return vmulq_f32(gated, vaddq_f32(v, all(1.0f)));
}

static inline float32x4_t softcap_lanes(float32x4_t x, float c) {
  const float32x4_t e = exp_lanes(vmulq_f32(x, all(2.0f / c)));
  const float32x4_t part = vdivq_f32(all(2.0f), vaddq_f32(e, all(1.0f)));
  return vmulq_f32(all(c), vsubq_f32(all(1.0f), part));
}

}  // namespace expertree::neon
