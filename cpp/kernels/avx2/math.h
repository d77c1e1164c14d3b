// canonical_math.h on eight lanes, operation for operation. Only its constants are used here: a call of its functions
// would, without optimisation, export std::fma as a weak symbol.
#pragma once

#include <immintrin.h>

#include "cpp/kernels/canonical_math.h"

namespace expertree::avx2 {

static inline __m256i as_int(__m256 x) { return _mm256_castps_si256(x); }
static inline __m256 as_float(__m256i x) { return _mm256_castsi256_ps(x); }

static inline __m256 exp_lanes(__m256 x) {
  const __m256 shifter = _mm256_set1_ps(0x1.8p+23f);
  // The operand order of vminps and vmaxps passes NaN on.
  __m256 t = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
  t = _mm256_max_ps(_mm256_set1_ps(-88.0f), t);
  const __m256 shifted = _mm256_fmadd_ps(t, _mm256_set1_ps(0x1.715476p+0f), shifter);
  const __m256 n = _mm256_sub_ps(shifted, shifter);
  const __m256i n_int = _mm256_sub_epi32(as_int(shifted), _mm256_set1_epi32(0x4b400000));
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), t);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_set1_ps(0x1.6a524ep-10f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.12396ep-7f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558aap-5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i n1 = _mm256_srai_epi32(n_int, 1);
  const __m256i n2 = _mm256_sub_epi32(n_int, n1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 scale1 = as_float(_mm256_slli_epi32(_mm256_add_epi32(n1, bias), 23));
  const __m256 scale2 = as_float(_mm256_slli_epi32(_mm256_add_epi32(n2, bias), 23));
  const __m256 result = _mm256_mul_ps(_mm256_mul_ps(p, scale1), scale2);
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(kExpLowest), _CMP_LT_OQ), result);
}

static inline __m256 log1p_poly_lanes(__m256 f, __m256 e) {
  __m256 p = _mm256_set1_ps(-0x1.38ca52p-4f);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.055fdcp-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(-0x1.0d82acp-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.22d91cp-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(-0x1.547282p-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.99a01cp-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(-0x1.000226p-2f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.555554p-2f));
  const __m256 f2 = _mm256_mul_ps(f, f);
  const __m256 f3 = _mm256_mul_ps(f2, f);
  __m256 tail = _mm256_fmadd_ps(f3, p, _mm256_mul_ps(e, _mm256_set1_ps(kLn2Low)));
  tail = _mm256_fmadd_ps(f2, _mm256_set1_ps(-0.5f), tail);
  const __m256 low = _mm256_add_ps(f, tail);
  return _mm256_fmadd_ps(e, _mm256_set1_ps(kLn2High), low);
}

static inline __m256 log_lanes(__m256 x) {
  const __m256 zero = _mm256_setzero_ps();
  const __m256 infinity = as_float(_mm256_set1_epi32(0x7f800000));
  const __m256 quiet_nan = as_float(_mm256_set1_epi32(0x7fc00000));
  const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(0x1p-126f), _CMP_LT_OQ);
  const __m256 normal = _mm256_blendv_ps(x, _mm256_mul_ps(x, _mm256_set1_ps(0x1p+23f)), tiny);
  const __m256 exponent_shift = _mm256_and_ps(tiny, _mm256_set1_ps(-23.0f));
  const __m256i root = _mm256_set1_epi32(0x3f3504f3);
  const __m256i offset = _mm256_sub_epi32(as_int(normal), root);
  const __m256 e = _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(offset, 23)), exponent_shift);
  const __m256i mantissa = _mm256_and_si256(offset, _mm256_set1_epi32(0x007fffff));
  const __m256 m = as_float(_mm256_add_epi32(mantissa, root));
  const __m256 f = _mm256_sub_ps(m, _mm256_set1_ps(1.0f));
  __m256 result = log1p_poly_lanes(f, e);
  result = _mm256_blendv_ps(x, result, _mm256_cmp_ps(x, infinity, _CMP_LT_OQ));
  result = _mm256_blendv_ps(result, _mm256_xor_ps(infinity, _mm256_set1_ps(-0.0f)), _mm256_cmp_ps(x, zero, _CMP_EQ_OQ));
  return _mm256_blendv_ps(result, quiet_nan, _mm256_cmp_ps(x, zero, _CMP_LT_OQ));
}

static inline __m256 silu_lanes(__m256 x) {
  const __m256 t = _mm256_max_ps(_mm256_set1_ps(-100.0f), x);
  const __m256 minus_t = _mm256_xor_ps(t, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(t, _mm256_add_ps(_mm256_set1_ps(1.0f), exp_lanes(minus_t)));
}

// x / (1 + exp(-z)).
static inline __m256 gate_lanes(__m256 x, __m256 z) {
  const __m256 minus_z = _mm256_xor_ps(z, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp_lanes(minus_z)));
}

static inline __m256 gelu_lanes(__m256 x) {
  const __m256 t = _mm256_max_ps(_mm256_set1_ps(-100.0f), x);
  const __m256 cubic = _mm256_fmadd_ps(_mm256_set1_ps(kGeluCube), _mm256_mul_ps(t, t), _mm256_set1_ps(1.0f));
  return gate_lanes(t, _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(kGeluSlope), t), cubic));
}

static inline __m256 swiglu_oai_lanes(__m256 gate, __m256 up) {
  const __m256 limit = _mm256_set1_ps(kOaiLimit);
  const __m256 t = _mm256_max_ps(_mm256_set1_ps(-100.0f), _mm256_min_ps(limit, gate));
  const __m256 v = _mm256_max_ps(_mm256_set1_ps(-kOaiLimit), _mm256_min_ps(limit, up));
  const __m256 gated = gate_lanes(t, _mm256_mul_ps(_mm256_set1_ps(kOaiSlope), t));
  return _mm256_mul_ps(gated, _mm256_add_ps(v, _mm256_set1_ps(1.0f)));
}

static inline __m256 softcap_lanes(__m256 x, float c) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = exp_lanes(_mm256_mul_ps(x, _mm256_set1_ps(2.0f / c)));
  const __m256 part = _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one));
  return _mm256_mul_ps(_mm256_set1_ps(c), _mm256_sub_ps(one, part));
}

}  // namespace expertree::avx2
