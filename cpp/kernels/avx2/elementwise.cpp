// Quantisation of activations, norms, softmax and element-wise functions (canonical.h, C3 and C5 to C7), AVX2.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/math.h"
#include "cpp/kernels/avx2/vector.h"

namespace expertree::avx2 {
namespace {

inline __m256i magnitude_bits(__m256 x) { return _mm256_and_si256(as_int(x), _mm256_set1_epi32(0x7fffffff)); }

inline int32_t max_of_int(__m256i x) {
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x0e));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0x01)));
}

// rint(x * inverse), clamped to +-127.
inline __m256i quantize_eight(const float* x, __m256 inverse) {
  const __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));  // to nearest even
  return _mm256_min_epi32(_mm256_max_epi32(rounded, _mm256_set1_epi32(-127)), _mm256_set1_epi32(127));
}

// 32 elements and their two sums.
inline void quantize_chunk(const float* x, __m256 inverse, int8_t* q, int16_t* sums16) {
  const __m256i q0 = quantize_eight(x, inverse);
  const __m256i q1 = quantize_eight(x + 8, inverse);
  const __m256i q2 = quantize_eight(x + 16, inverse);
  const __m256i q3 = quantize_eight(x + 24, inverse);
  // The packs work in 128-bit halves: groups of four bytes come out as 0 2 4 6 1 3 5 7.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
  const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), ordered);
  const __m256i pairs = _mm256_hadd_epi32(_mm256_add_epi32(q0, q1), _mm256_add_epi32(q2, q3));
  const __m256i quads = _mm256_hadd_epi32(pairs, pairs);
  const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
  sums16[0] = static_cast<int16_t>(_mm_cvtsi128_si32(both));
  sums16[1] = static_cast<int16_t>(_mm_extract_epi32(both, 1));
}

template <int kBlock>
void quantize_blocks(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  for (int64_t b = 0; b < n / kBlock; ++b, x += kBlock, q += kBlock, sums16 += kBlock / 16) {
    // Non-negative floats are ordered as their bits are, with infinity and then the NaNs on top.
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < kBlock; i += 8) top = _mm256_max_epi32(top, magnitude_bits(_mm256_loadu_ps(x + i)));
    const int32_t amax_bits = max_of_int(top);
    float amax;
    std::memcpy(&amax, &amax_bits, 4);
    const float inverse = 127.0f / amax;
    const bool finite = amax_bits < 0x7f800000;
    if (finite && inverse <= 3.40282347e+38f) {
      d[b] = amax / 127.0f;
      for (int i = 0; i < kBlock; i += 32) quantize_chunk(x + i, _mm256_set1_ps(inverse), q + i, sums16 + i / 16);
    } else {
      d[b] = finite ? 0.0f : __builtin_nanf("");
      std::memset(q, 0, kBlock);
      std::memset(sums16, 0, kBlock / 16 * sizeof(int16_t));
    }
  }
}

// y[i] = function(i's eight elements of a, of b); b may be null and is then not read.
template <typename Function>
inline void map(const float* a, const float* b, int64_t n, float* y, Function function) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 right = b ? _mm256_loadu_ps(b + i) : _mm256_setzero_ps();
    _mm256_storeu_ps(y + i, function(_mm256_loadu_ps(a + i), right));
  }
  if (i < n) {
    const __m256i mask = tail_mask(n - i);
    const __m256 right = b ? _mm256_maskload_ps(b + i, mask) : _mm256_setzero_ps();
    _mm256_maskstore_ps(y + i, mask, function(_mm256_maskload_ps(a + i, mask), right));
  }
}

}  // namespace

void quantize_q8_32(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_blocks<32>(x, n, q, d, sums16);
}

void quantize_q8_256(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_blocks<256>(x, n, q, d, sums16);
}

void rms_norm(const float* x, const float* w, float eps, int64_t n, float* y) {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 x0 = _mm256_loadu_ps(x + i);
    const __m256 x1 = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(x0, x0, low);
    high = _mm256_fmadd_ps(x1, x1, high);
  }
  if (i < n) {
    // A square is never negative, so a lane never holds -0 and adding 0 leaves it as it is.
    const __m256 x0 = _mm256_maskload_ps(x + i, tail_mask(n - i));
    const __m256 x1 = _mm256_maskload_ps(x + i + 8, tail_mask(n - i - 8));
    low = _mm256_fmadd_ps(x0, x0, low);
    high = _mm256_fmadd_ps(x1, x1, high);
  }
  const float mean = combine(low, high) / static_cast<float>(n);
  const float r = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  const __m256 factor = _mm256_set1_ps(r);
  if (w) {
    map(x, w, n, y, [&](__m256 a, __m256 b) { return _mm256_mul_ps(_mm256_mul_ps(a, factor), b); });
  } else {
    map(x, nullptr, n, y, [&](__m256 a, __m256) { return _mm256_mul_ps(a, factor); });
  }
}

void softmax(const float* x, int64_t n, float* p) {
  const __m256 lowest = as_float(_mm256_set1_epi32(static_cast<int32_t>(0xff800000u)));  // -inf
  __m256 top = lowest;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) top = _mm256_max_ps(_mm256_loadu_ps(x + i), top);  // a NaN in x leaves top
  if (i < n) {
    const __m256i mask = tail_mask(n - i);
    top = _mm256_max_ps(select(mask, _mm256_maskload_ps(x + i, mask), lowest), top);
  }
  const __m256 max = _mm256_set1_ps(max_of(top));
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 p0 = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(x + i), max));
    const __m256 p1 = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), max));
    _mm256_storeu_ps(p + i, p0);
    _mm256_storeu_ps(p + i + 8, p1);
    low = _mm256_add_ps(low, p0);
    high = _mm256_add_ps(high, p1);
  }
  if (i < n) {
    const __m256i m0 = tail_mask(n - i);
    const __m256i m1 = tail_mask(n - i - 8);
    const __m256 p0 = exp_lanes(_mm256_sub_ps(_mm256_maskload_ps(x + i, m0), max));
    const __m256 p1 = exp_lanes(_mm256_sub_ps(_mm256_maskload_ps(x + i + 8, m1), max));
    _mm256_maskstore_ps(p + i, m0, p0);
    _mm256_maskstore_ps(p + i + 8, m1, p1);
    low = select(m0, _mm256_add_ps(low, p0), low);
    high = select(m1, _mm256_add_ps(high, p1), high);
  }
  const __m256 sum = _mm256_set1_ps(combine(low, high));
  map(p, nullptr, n, p, [&](__m256 a, __m256) { return _mm256_div_ps(a, sum); });
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](__m256 a, __m256 b) { return _mm256_mul_ps(silu_lanes(a), b); });
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](__m256 a, __m256 b) { return _mm256_mul_ps(gelu_lanes(a), b); });
}

void swiglu_oai(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](__m256 a, __m256 b) { return swiglu_oai_lanes(a, b); });
}

void relu_mul(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](__m256 a, __m256 b) { return _mm256_mul_ps(_mm256_max_ps(_mm256_setzero_ps(), a), b); });
}

void axpy(float scale, const float* x, int64_t n, float* acc) {
  const __m256 factor = _mm256_set1_ps(scale);
  map(x, acc, n, acc, [&](__m256 a, __m256 b) { return _mm256_fmadd_ps(factor, a, b); });
}

void exp_f32(const float* x, int64_t n, float* y) {
  map(x, nullptr, n, y, [](__m256 a, __m256) { return exp_lanes(a); });
}

void log_f32(const float* x, int64_t n, float* y) {
  map(x, nullptr, n, y, [](__m256 a, __m256) { return log_lanes(a); });
}

void encode_f16(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_maskload_ps(x + i, tail_mask(n - i)), _MM_FROUND_TO_NEAREST_INT);
    alignas(16) uint16_t lanes[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), halves);
    std::memcpy(y + i, lanes, static_cast<size_t>(n - i < 8 ? n - i : 8) * 2);
  }
}

}  // namespace expertree::avx2

#endif
