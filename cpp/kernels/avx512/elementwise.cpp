// Quantisation of activations, norms, softmax and element-wise functions (canonical.h, C3 and C5 to C7).
#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// Calls body(i, mask) for i = 0, 16, .. < n with the lanes that exist.
template <typename Body>
inline void for_each_16(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, static_cast<__mmask16>(0xffff));
  if (i < n) body(i, first_lanes(n - i));
}

inline __m512 load(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline void store(float* p, __mmask16 mask, __m512 v) { _mm512_mask_storeu_ps(p, mask, v); }

inline int32_t max_lane_i32(__m512i a) {
  const __m256i h8 = _mm256_max_epi32(_mm512_castsi512_si256(a), _mm512_maskz_extracti32x8_epi32(0xff, a, 1));
  const __m128i h4 = _mm_max_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
  const __m128i h2 = _mm_max_epi32(h4, _mm_shuffle_epi32(h4, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}

// q [n] to the sums of 16; n is a multiple of 32.
void sum_16(const int8_t* q, int64_t n, int16_t* sums16) {
  for (int64_t i = 0; i < n; i += 64) {
    const int64_t left = n - i;
    const __m512i v = left >= 64 ? _mm512_loadu_si512(q + i)
                                 : _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i)));
    __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), v);
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_CDAB));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_BADC));
    const __m128i sums = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, s));
    _mm_mask_storeu_epi16(sums16 + i / 16, left >= 64 ? 0x0f : 0x03, _mm_packs_epi32(sums, sums));
  }
}

// Blocks of kVectors * 16 elements.
template <int kVectors>
void quantize_rows(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  constexpr int64_t kBlock = 16 * kVectors;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < n / kBlock; ++b) {
    const float* block = x + b * kBlock;
    // Magnitudes order as their bits do; infinity and NaN come out on top.
    __m512i largest = _mm512_setzero_si512();
    for (int v = 0; v < kVectors; ++v) {
      const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(block + 16 * v));
      largest = _mm512_max_epi32(largest, _mm512_and_si512(bits, magnitude));
    }
    const int32_t amax_bits = max_lane_i32(largest);
    const bool finite = amax_bits < 0x7f800000;
    float amax;
    std::memcpy(&amax, &amax_bits, 4);
    const float inverse = 127.0f / amax;
    const bool zero = !finite || !(inverse < kInfinity);
    d[b] = !finite ? __builtin_nanf("") : zero ? 0.0f : amax / 127.0f;
    const __mmask16 kept = zero ? 0 : 0xffff;
    for (int v = 0; v < kVectors; ++v) {
      const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(block + 16 * v), set1(inverse));
      __m512i rounded = _mm512_maskz_cvtps_epi32(kept, scaled);  // to nearest even
      rounded = _mm512_max_epi32(_mm512_min_epi32(rounded, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + b * kBlock + 16 * v), _mm512_cvtepi32_epi8(rounded));
    }
  }
  sum_16(q, n, sums16);
}

}  // namespace

void quantize_q8_32(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_rows<2>(x, n, q, d, sums16);
}

void quantize_q8_256(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_rows<16>(x, n, q, d, sums16);
}

void rms_norm(const float* x, const float* w, float eps, int64_t n, float* y) {
  __m512 squares = _mm512_setzero_ps();
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    const __m512 v = load(x + i, mask);
    squares = _mm512_mask3_fmadd_ps(v, v, squares, mask);
  });
  const __m128 mean = _mm_set_ss(combine_lanes(squares) / static_cast<float>(n) + eps);
  const __m512 r = set1(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    const __m512 scaled = _mm512_mul_ps(load(x + i, mask), r);
    store(y + i, mask, w ? _mm512_mul_ps(scaled, load(w + i, mask)) : scaled);
  });
}

void softmax(const float* x, int64_t n, float* p) {
  __m512 largest = set1(-kInfinity);
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    // maxps(v, largest) keeps `largest` where v is NaN, as the scalar comparison does.
    largest = _mm512_mask_max_ps(largest, mask, load(x + i, mask), largest);
  });
  const __m512 m = set1(max_lane(largest));
  __m512 lanes = _mm512_setzero_ps();
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    const __m512 e = exp_16(_mm512_sub_ps(load(x + i, mask), m));
    lanes = _mm512_mask_add_ps(lanes, mask, lanes, e);
    store(p + i, mask, e);
  });
  const __m512 sum = set1(combine_lanes(lanes));
  for_each_16(n, [&](int64_t i, __mmask16 mask) { store(p + i, mask, _mm512_div_ps(load(p + i, mask), sum)); });
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    store(y + i, mask, _mm512_mul_ps(silu_16(load(gate + i, mask)), load(up + i, mask)));
  });
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    store(y + i, mask, _mm512_mul_ps(gelu_16(load(gate + i, mask)), load(up + i, mask)));
  });
}

void swiglu_oai(const float* gate, const float* up, int64_t n, float* y) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    store(y + i, mask, swiglu_oai_16(load(gate + i, mask), load(up + i, mask)));
  });
}

void relu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    const __m512 kept = _mm512_max_ps(_mm512_setzero_ps(), load(gate + i, mask));
    store(y + i, mask, _mm512_mul_ps(kept, load(up + i, mask)));
  });
}

void axpy(float scale, const float* x, int64_t n, float* acc) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    store(acc + i, mask, _mm512_fmadd_ps(set1(scale), load(x + i, mask), load(acc + i, mask)));
  });
}

void exp_f32(const float* x, int64_t n, float* y) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) { store(y + i, mask, exp_16(load(x + i, mask))); });
}

void log_f32(const float* x, int64_t n, float* y) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) { store(y + i, mask, log_16(load(x + i, mask))); });
}

void encode_f16(const float* x, int64_t n, uint16_t* y) {
  for_each_16(n, [&](int64_t i, __mmask16 mask) {
    _mm256_mask_storeu_epi16(y + i, mask, _mm512_cvtps_ph(load(x + i, mask), _MM_FROUND_TO_NEAREST_INT));
  });
}

}  // namespace expertree::avx512

#endif
