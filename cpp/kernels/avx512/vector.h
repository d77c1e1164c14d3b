// What the AVX-512 files share. Everything here is static: no symbol of this folder but its kernels leaves an object, and
// nothing that could be merged with a copy built for another CPU. For the same reason no std:: function is called that
// is inline (std::min and the like are weak symbols in a debug build).
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VBMI__) && defined(__AVX512VNNI__) && defined(__GFNI__) && defined(__BMI2__) &&    \
    defined(__FMA__) && defined(__F16C__)
#define EXPERTREE_AVX512 1
#endif

#if defined(EXPERTREE_AVX512)

// GCC 12 warns about its own _mm512_undefined_*.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpp/kernels/canonical_math.h"

namespace expertree::avx512 {
namespace {

constexpr float kInfinity = __builtin_inff();

template <typename T>
inline T min_of(T a, T b) {
  return b < a ? b : a;
}

template <typename T>
inline T max_of(T a, T b) {
  return a < b ? b : a;
}

// The first n of 16 (or 32) lanes; all of them when n is larger.
inline __mmask16 first_lanes(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1u);
}
inline __mmask32 first_lanes32(int64_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1u; }

inline int32_t load_i32(const void* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

inline __m128i load_16_bytes(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// canonical.h, C1: combines 16 accumulators of 16 lanes each; lane i of the result belongs to a[i]. The adds are those of
// combine_lanes (lane l plus lane l + h for h = 8, 4, 2, 1), done for several accumulators in one register.
inline __m512 combine_lanes_16(const __m512 (&a)[16]) {
  __m512 u[2][2];
  for (int pair = 0; pair < 2; ++pair) {
    __m512 quarter[2];  // 128-bit lane L of quarter[.] holds what is left of a[4 * L + k]
    for (int half = 0; half < 2; ++half) {
      const int k = 2 * pair + half;
      const __m512 low =
          _mm512_add_ps(_mm512_shuffle_f32x4(a[k], a[4 + k], 0x44), _mm512_shuffle_f32x4(a[k], a[4 + k], 0xee));
      const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0x44),
                                        _mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0xee));
      quarter[half] = _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
    }
    const __m512d q0 = _mm512_castps_pd(quarter[0]);
    const __m512d q1 = _mm512_castps_pd(quarter[1]);
    u[0][pair] = _mm512_castpd_ps(_mm512_unpacklo_pd(q0, q1));
    u[1][pair] = _mm512_castpd_ps(_mm512_unpackhi_pd(q0, q1));
  }
  const __m512 v0 = _mm512_add_ps(u[0][0], u[1][0]);
  const __m512 v1 = _mm512_add_ps(u[0][1], u[1][1]);
  return _mm512_add_ps(_mm512_shuffle_ps(v0, v1, 0x88), _mm512_shuffle_ps(v0, v1, 0xdd));
}

// canonical.h, C1, for one accumulator.
inline float combine_lanes(__m512 a) {
  const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_maskz_extractf32x8_ps(0xff, a, 1));
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
}

// The largest lane, any order; no lane is NaN.
inline float max_lane(__m512 a) {
  const __m256 h8 = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_maskz_extractf32x8_ps(0xff, a, 1));
  const __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_max_ss(h2, _mm_movehdup_ps(h2)));
}

inline __m512 set1(float x) { return _mm512_set1_ps(x); }

// canonical_math.h, canonical_exp, operation for operation.
inline __m512 exp_16(__m512 x) {
  __m512 t = _mm512_min_ps(set1(89.0f), x);
  t = _mm512_max_ps(set1(-88.0f), t);
  const __m512 shifted = _mm512_fmadd_ps(t, set1(0x1.715476p+0f), set1(0x1.8p+23f));
  const __m512 n = _mm512_sub_ps(shifted, set1(0x1.8p+23f));
  const __m512i n_int = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x4b400000));
  __m512 r = _mm512_fmadd_ps(n, set1(-kLn2High), t);
  r = _mm512_fmadd_ps(n, set1(-kLn2Low), r);
  __m512 p = set1(0x1.6a524ep-10f);
  p = _mm512_fmadd_ps(p, r, set1(0x1.12396ep-7f));
  p = _mm512_fmadd_ps(p, r, set1(0x1.5558aap-5f));
  p = _mm512_fmadd_ps(p, r, set1(0x1.555492p-3f));
  p = _mm512_fmadd_ps(p, r, set1(0x1.fffffcp-2f));
  p = _mm512_fmadd_ps(p, r, set1(1.0f));
  p = _mm512_fmadd_ps(p, r, set1(1.0f));
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i n1 = _mm512_srai_epi32(n_int, 1);
  const __m512i n2 = _mm512_sub_epi32(n_int, n1);
  const __m512 scale1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n1, bias), 23));
  const __m512 scale2 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n2, bias), 23));
  const __m512 result = _mm512_mul_ps(_mm512_mul_ps(p, scale1), scale2);
  const __mmask16 flushed = _mm512_cmp_ps_mask(x, set1(kExpLowest), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(result, flushed, _mm512_setzero_ps());
}

// canonical_log.
inline __m512 log_16(__m512 x) {
  const __mmask16 tiny = _mm512_cmp_ps_mask(x, set1(0x1p-126f), _CMP_LT_OQ);
  const __m512 normal = _mm512_mask_mul_ps(x, tiny, x, set1(0x1p+23f));
  const __m512 exponent_shift = _mm512_maskz_mov_ps(tiny, set1(-23.0f));
  const __m512i root = _mm512_set1_epi32(0x3f3504f3);
  const __m512i offset = _mm512_sub_epi32(_mm512_castps_si512(normal), root);
  const __m512 e = _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(offset, 23)), exponent_shift);
  const __m512i mantissa = _mm512_and_si512(offset, _mm512_set1_epi32(0x007fffff));
  const __m512 f = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(mantissa, root)), set1(1.0f));
  __m512 p = set1(-0x1.38ca52p-4f);
  p = _mm512_fmadd_ps(p, f, set1(0x1.055fdcp-3f));
  p = _mm512_fmadd_ps(p, f, set1(-0x1.0d82acp-3f));
  p = _mm512_fmadd_ps(p, f, set1(0x1.22d91cp-3f));
  p = _mm512_fmadd_ps(p, f, set1(-0x1.547282p-3f));
  p = _mm512_fmadd_ps(p, f, set1(0x1.99a01cp-3f));
  p = _mm512_fmadd_ps(p, f, set1(-0x1.000226p-2f));
  p = _mm512_fmadd_ps(p, f, set1(0x1.555554p-2f));
  const __m512 f2 = _mm512_mul_ps(f, f);
  const __m512 f3 = _mm512_mul_ps(f2, f);
  __m512 tail = _mm512_fmadd_ps(f3, p, _mm512_mul_ps(e, set1(kLn2Low)));
  tail = _mm512_fmadd_ps(f2, set1(-0.5f), tail);
  __m512 result = _mm512_fmadd_ps(e, set1(kLn2High), _mm512_add_ps(f, tail));
  const __m512 zero = _mm512_setzero_ps();
  result = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, set1(kInfinity), _CMP_LT_OQ), result);
  result = _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, zero, _CMP_EQ_OQ), set1(-kInfinity));
  return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ), set1(__builtin_nanf("")));
}

// canonical_silu.
inline __m512 silu_16(__m512 x) {
  const __m512 t = _mm512_max_ps(set1(-100.0f), x);
  const __m512 minus_t = _mm512_xor_ps(t, set1(-0.0f));
  return _mm512_div_ps(t, _mm512_add_ps(set1(1.0f), exp_16(minus_t)));
}

// canonical_gate, canonical_gelu, canonical_swiglu_oai and canonical_softcap.
inline __m512 gate_16(__m512 x, __m512 z) {
  return _mm512_div_ps(x, _mm512_add_ps(set1(1.0f), exp_16(_mm512_xor_ps(z, set1(-0.0f)))));
}

inline __m512 gelu_16(__m512 x) {
  const __m512 t = _mm512_max_ps(set1(-100.0f), x);
  const __m512 cubic = _mm512_fmadd_ps(set1(kGeluCube), _mm512_mul_ps(t, t), set1(1.0f));
  return gate_16(t, _mm512_mul_ps(_mm512_mul_ps(set1(kGeluSlope), t), cubic));
}

inline __m512 swiglu_oai_16(__m512 gate, __m512 up) {
  const __m512 limit = set1(kOaiLimit);
  const __m512 t = _mm512_max_ps(set1(-100.0f), _mm512_min_ps(limit, gate));
  const __m512 v = _mm512_max_ps(set1(-kOaiLimit), _mm512_min_ps(limit, up));
  return _mm512_mul_ps(gate_16(t, _mm512_mul_ps(set1(kOaiSlope), t)), _mm512_add_ps(v, set1(1.0f)));
}

inline __m512 softcap_16(__m512 x, float c) {
  const __m512 e = exp_16(_mm512_mul_ps(x, set1(2.0f / c)));
  const __m512 part = _mm512_div_ps(set1(2.0f), _mm512_add_ps(e, set1(1.0f)));
  return _mm512_mul_ps(set1(c), _mm512_sub_ps(set1(1.0f), part));
}

}  // namespace
}  // namespace expertree::avx512

#endif  // EXPERTREE_AVX512
