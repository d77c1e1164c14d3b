// Products of Q2_K, Q3_K and IQ4_XS with few columns (stream_q256.h).
#include "cpp/kernels/avx512/stream_q256.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// 16 bytes of each of four blocks at `at`, one per 128-bit lane.
inline __m512i load_four(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                         size_t at) {
  __m512i v = _mm512_castsi128_si512(load_16_bytes(p0 + at));
  v = _mm512_inserti32x4(v, load_16_bytes(p1 + at), 1);
  v = _mm512_inserti32x4(v, load_16_bytes(p2 + at), 2);
  return _mm512_inserti32x4(v, load_16_bytes(p3 + at), 3);
}

inline __m512i in_every_lane(__m128i v) { return _mm512_broadcast_i32x4(v); }

// Q2_K and Q3_K: bytes 0-31 hold the elements 32 * quarter of the first half in bits 2 * quarter, bytes 32-63 those of
// the second half; w[quarter] has both. Its four lanes have scales 2q, 2q + 1, 2q + 8, 2q + 9.
inline void arrange_quarters(const int8_t* q, int8_t* out) {
  for (int i = 0; i < 128; i += 64) {
    const __m512i a = load_512(q + i);
    const __m512i b = load_512(q + i + 128);
    _mm512_store_si512(out + 2 * i, _mm512_shuffle_i64x2(a, b, 0x44));
    _mm512_store_si512(out + 2 * i + 64, _mm512_shuffle_i64x2(a, b, 0xee));
  }
}
inline __m512i quarter_of(__m512i v, int quarter) {
  return and_bytes(_mm512_srli_epi16(v, 2 * static_cast<unsigned>(quarter)), 3);
}

struct Q2_K : Stream256<Q2_K, BlockQ2_K> {
  static void arrange(const int8_t* q, int8_t* out) { arrange_quarters(q, out); }

  static inline void scales(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            uint8_t (*out)[16]) {
    _mm512_store_si512(out, low_nibbles(load_four(p0, p1, p2, p3, offsetof(BlockQ2_K, scales))));
  }

  struct Spread {
    __m512i v[4];  // (int16, 0)
  };
  static inline Spread spread(const uint8_t* scales) {
    const __m512i v = in_every_lane(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
    const auto lane = [](int scale) { return _mm_set1_epi32(scale | static_cast<int>(0x80808000)); };
    __m512i first = _mm512_castsi128_si512(lane(0));
    first = _mm512_inserti32x4(first, lane(1), 1);
    first = _mm512_inserti32x4(first, lane(8), 2);
    first = _mm512_inserti32x4(first, lane(9), 3);
    Spread out;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) out.v[j] = _mm512_shuffle_epi8(v, _mm512_add_epi32(first, _mm512_set1_epi32(2 * j)));
    return out;
  }
  static inline __m512i start(const Spread&, const int16_t*) { return _mm512_setzero_si512(); }

  static inline void unpack(const std::byte* p, __m512i (&w)[4]) {
    const __m512i v = load_512(p + offsetof(BlockQ2_K, qs));
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) w[quarter] = quarter_of(v, quarter);
  }

  static inline MinRest rest(const std::byte* p, int64_t stride) {
    alignas(64) uint32_t halves[kPanelRows];
    copy_from_rows(p + offsetof(BlockQ2_K, d), stride, halves);
    MinRest out;
    __m512i v[4];
    load_rows(p + offsetof(BlockQ2_K, scales), stride, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i min = high_nibbles(v[i]);
      out.min[2 * i] = byte_pair(min, 0, 1);
      out.min[2 * i + 1] = byte_pair(min, 2, 3);
    }
    const __m512i both = _mm512_load_si512(halves);
    out.d = low_halves(both);
    out.dmin = high_halves(both);
    return out;
  }
};

struct Q3_K : Stream256<Q3_K, BlockQ3_K> {
  static void arrange(const int8_t* q, int8_t* out) { arrange_quarters(q, out); }

  // Sixteen int8 from twelve bytes, which lie two bytes into what is loaded.
  static inline void scales(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            uint8_t (*out)[16]) {
    const __m512i v = load_four(p0, p1, p2, p3, offsetof(BlockQ3_K, scales) - 2);
    const __m128i nibble_bytes = _mm_set_epi64x(0x0908070605040302, 0x0908070605040302);
    const __m512i nibbles = _mm512_shuffle_epi8(v, in_every_lane(nibble_bytes));
    const __m512i low = low_nibbles(_mm512_srlv_epi64(nibbles, in_every_lane(_mm_set_epi64x(4, 0))));
    const __m512i pairs = _mm512_shuffle_epi8(v, _mm512_set1_epi32(0x0d0c0b0a));
    const __m512i shifted = _mm512_srlv_epi32(pairs, in_every_lane(_mm_set_epi32(6, 4, 2, 0)));
    const __m512i high = _mm512_slli_epi16(and_bytes(shifted, 3), 4);
    _mm512_store_si512(out, _mm512_sub_epi8(_mm512_or_si512(low, high), _mm512_set1_epi8(32)));
  }

  static inline SignedScales spread(const uint8_t* scales) { return spread_signed(scales, 4, 0x09080100, 2); }
  static inline __m512i start(const SignedScales& scale, const int16_t* sums16) { return scale.start(sums16); }

  static inline void unpack(const std::byte* p, __m512i (&w)[4]) {
    const __m512i v = load_512(p + offsetof(BlockQ3_K, qs));
    const auto* hmask = reinterpret_cast<const __m256i*>(p + offsetof(BlockQ3_K, hmask));
    const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256(hmask));
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {  // bit `quarter` of the first half, quarter + 4 of the second
      const __m512i bits = _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(1 << quarter)),
                                              _mm256_set1_epi8(static_cast<char>(16 << quarter)), 1);
      const __m512i low = quarter_of(v, quarter);
      w[quarter] = _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(high, bits), low, _mm512_set1_epi8(4));
    }
  }

  static inline PlainRest rest(const std::byte* p, int64_t stride) {
    return rest_of_half(p + offsetof(BlockQ3_K, d), stride);
  }
};

// Values beyond 63 would overflow 16 bits with an offset: their magnitudes meet activations that have taken the sign.
struct IQ4_XS : Stream256<IQ4_XS, BlockIQ4_XS> {
  static void arrange(const int8_t* q, int8_t* out) {
    for (int i = 0; i < 256; i += 128) {
      const __m512i a = load_512(q + i);
      const __m512i b = load_512(q + i + 64);
      _mm512_store_si512(out + i, _mm512_shuffle_i32x4(a, b, 0x88));
      _mm512_store_si512(out + i + 64, _mm512_shuffle_i32x4(a, b, 0xdd));
    }
  }

  // Eight int16 per block.
  static inline void scales(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            uint8_t (*out)[16]) {
    const __m512i v = load_four(p0, p1, p2, p3, 0);
    const __m128i low_bytes =
        _mm_set_epi64x(static_cast<int64_t>(0x8007800780068006), static_cast<int64_t>(0x8005800580048004));
    const __m512i nibbles = _mm512_shuffle_epi8(v, in_every_lane(low_bytes));
    const __m512i low = _mm512_and_si512(_mm512_srlv_epi16(nibbles, _mm512_set1_epi32(4 << 16)), _mm512_set1_epi16(15));
    const __m512i pairs = _mm512_shuffle_epi8(v, _mm512_set1_epi16(0x0302));
    const __m512i by = in_every_lane(_mm_set_epi16(14, 12, 10, 8, 6, 4, 2, 0));
    const __m512i high = _mm512_and_si512(_mm512_srlv_epi16(pairs, by), _mm512_set1_epi16(3));
    const __m512i scale = _mm512_or_si512(low, _mm512_slli_epi16(high, 4));
    _mm512_store_si512(out, _mm512_sub_epi16(scale, _mm512_set1_epi16(32)));
  }

  struct Spread {
    __m512i v[4];  // the scale in both int16
  };
  static inline Spread spread(const uint8_t* scales) {
    const __m512i v = in_every_lane(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
    __m512i first = _mm512_castsi128_si512(_mm_set1_epi16(0x0100));
    first = _mm512_inserti32x4(first, _mm_set1_epi16(0x0302), 1);
    first = _mm512_inserti32x4(first, _mm_set1_epi16(0x0504), 2);
    first = _mm512_inserti32x4(first, _mm_set1_epi16(0x0706), 3);
    const __m512i low = _mm512_shuffle_epi8(v, first);
    const __m512i high = _mm512_shuffle_epi8(v, _mm512_add_epi8(first, _mm512_set1_epi8(8)));
    return {{low, low, high, high}};
  }
  static inline __m512i start(const Spread&, const int16_t*) { return _mm512_setzero_si512(); }

  struct Weights {
    __m512i magnitude[4];
    __mmask64 minus[4];
  };
  static inline void unpack(const std::byte* p, Weights& w) {
    const __m512i values = in_every_lane(_mm_abs_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4Values))));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512i v = load_512(p + offsetof(BlockIQ4_XS, qs) + 64 * i);
      w.magnitude[2 * i] = _mm512_shuffle_epi8(values, low_nibbles(v));
      w.magnitude[2 * i + 1] = _mm512_shuffle_epi8(values, high_nibbles(v));
      w.minus[2 * i] = _mm512_testn_epi8_mask(v, _mm512_set1_epi8(8));  // the first eight values are negative
      w.minus[2 * i + 1] = _mm512_testn_epi8_mask(v, _mm512_set1_epi8(-128));
    }
  }
  static inline __m512i times(const Weights& w, int j, __m512i x) {
    return _mm512_maddubs_epi16(w.magnitude[j], _mm512_mask_sub_epi8(x, w.minus[j], _mm512_setzero_si512(), x));
  }

  static inline PlainRest rest(const std::byte* p, int64_t stride) { return rest_of_half(p, stride); }
};

}  // namespace

void matmul_q2_k(const MatmulArgs& args) { matmul_stream<Q2_K>(args, panel_q2_k); }
void matmul_q3_k(const MatmulArgs& args) { matmul_stream<Q3_K>(args, panel_q3_k); }
void matmul_iq4_xs(const MatmulArgs& args) { matmul_stream<IQ4_XS>(args, panel_iq4_xs); }

}  // namespace expertree::avx512

#endif
