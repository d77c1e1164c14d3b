// Products of Q4_K, Q5_K and Q6_K with few columns (stream_q256.h).
#include "cpp/kernels/avx512/stream_q256.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// Q4_K and Q5_K: bytes of 32 elements hold two sub-blocks; 64 bytes hold sub-blocks 0 and 2 low, 1 and 3 high.
template <typename Self, typename Block>
struct ScaleMin : Stream256<Self, Block> {
  static void arrange(const int8_t* q, int8_t* out) {
    for (int i = 0; i < 256; i += 128) {
      const __m512i a = load_512(q + i);
      const __m512i b = load_512(q + i + 64);
      _mm512_store_si512(out + i, _mm512_shuffle_i64x2(a, b, 0x44));
      _mm512_store_si512(out + i + 64, _mm512_shuffle_i64x2(a, b, 0xee));
    }
  }

  // Eight scales in the first eight bytes.
  static inline void scales(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            uint8_t (*out)[16]) {
    __m512i v = _mm512_castsi128_si512(load_16_bytes(p0));
    v = _mm512_inserti32x4(v, load_16_bytes(p1), 1);
    v = _mm512_inserti32x4(v, load_16_bytes(p2), 2);
    v = _mm512_inserti32x4(v, load_16_bytes(p3), 3);
    const auto pick = [](__m512i x, int64_t control) {
      return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_set_epi64x(-1, control)));
    };
    const __m512i low = _mm512_and_si512(pick(v, 0x0f0e0d0c07060504), _mm512_set1_epi64(0x0f0f0f0f3f3f3f3f));
    const __m512i upper = pick(_mm512_srli_epi16(v, 2), 0x07060504ffffffff);
    _mm512_store_si512(out, _mm512_or_si512(low, and_bytes(upper, 0x30)));
  }

  static inline SpreadScales spread(const uint8_t* scales) {
    const __m512i v = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
    const auto pick = [&](int low, int high) {
      const __m512i control = _mm512_inserti64x4(_mm512_set1_epi32(low | static_cast<int>(0x80808000)),
                                                 _mm256_set1_epi32(high | static_cast<int>(0x80808000)), 1);
      return _mm512_shuffle_epi8(v, control);
    };
    return {{pick(0, 2), pick(1, 3), pick(4, 6), pick(5, 7)}};
  }

  static inline __m512i start(const SpreadScales&, const int16_t*) { return _mm512_setzero_si512(); }

  static inline MinRest rest(const std::byte* p, int64_t stride) {
    MinRest out;
    __m512i v[4];
    load_rows(p, stride, v);
    const __m512i min[2] = {and_bytes(v[2], 63),
                            _mm512_or_si512(high_nibbles(v[3]), and_bytes(_mm512_srli_epi16(v[2], 2), 0x30))};
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; ++j) out.min[j] = byte_pair(min[j / 4], j % 4, j % 4);
    out.d = low_halves(v[0]);
    out.dmin = high_halves(v[0]);
    return out;
  }
};

struct Q4_K : ScaleMin<Q4_K, BlockQ4_K> {
  static inline void unpack(const std::byte* p, __m512i (&w)[4]) {
    for (int i = 0; i < 2; ++i) {
      const __m512i v = load_512(p + offsetof(BlockQ4_K, qs) + 64 * i);
      w[2 * i] = low_nibbles(v);
      w[2 * i + 1] = high_nibbles(v);
    }
  }
};

struct Q5_K : ScaleMin<Q5_K, BlockQ5_K> {
  static inline void unpack(const std::byte* p, __m512i (&w)[4]) {
    const __m256i qh = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + offsetof(BlockQ5_K, qh)));
    const __m512i high = _mm512_broadcast_i64x4(qh);
    const auto add = [&](__m512i low, int sub_block) {  // the fifth bits of sub_block and sub_block + 2
      const __m512i bits = _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(1 << sub_block)),
                                              _mm256_set1_epi8(static_cast<char>(4 << sub_block)), 1);
      return _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(high, bits), low, _mm512_set1_epi8(16));
    };
    for (int i = 0; i < 2; ++i) {
      const __m512i v = load_512(p + offsetof(BlockQ5_K, qs) + 64 * i);
      w[2 * i] = add(low_nibbles(v), 4 * i);
      w[2 * i + 1] = add(high_nibbles(v), 4 * i + 1);
    }
  }
};

struct Q6_K : Stream256<Q6_K, BlockQ6_K> {
  static void arrange(const int8_t* q, int8_t* out) {
    for (int i = 0; i < 256; i += 64) _mm512_store_si512(out + i, load_512(q + i));
  }

  static inline void scales(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            uint8_t (*out)[16]) {
    const std::byte* const p[4] = {p0, p1, p2, p3};
    for (int i = 0; i < 4; ++i) std::memcpy(out[i], p[i] + offsetof(BlockQ6_K, scales), 16);
  }

  static inline SignedScales spread(const uint8_t* scales) { return spread_signed(scales, 32, 0x03020100, 4); }
  static inline __m512i start(const SignedScales& scale, const int16_t* sums16) { return scale.start(sums16); }

  static inline void unpack(const std::byte* p, __m512i (&w)[4]) {
    // vpmultishiftqb moves bits 2 * quarter of qh to bits 4 and 5, for two quarters at once.
    const __m512i bytes = _mm512_set1_epi64(0x3830282018100800);
    const auto shift = [&](int low, int high) {
      const __m512i by =
          _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(low)), _mm256_set1_epi8(static_cast<char>(high)), 1);
      return _mm512_and_si512(_mm512_add_epi8(bytes, by), _mm512_set1_epi8(63));
    };
    const __m512i low_shift = shift(-4, -2);
    const __m512i high_shift = shift(0, 2);
    for (int i = 0; i < 2; ++i) {
      const __m512i v = load_512(p + offsetof(BlockQ6_K, ql) + 64 * i);
      const auto* qh = reinterpret_cast<const __m256i*>(p + offsetof(BlockQ6_K, qh) + 32 * i);
      const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256(qh));
      w[2 * i] = _mm512_or_si512(low_nibbles(v), and_bytes(_mm512_multishift_epi64_epi8(low_shift, high), 0x30));
      w[2 * i + 1] = _mm512_or_si512(high_nibbles(v), and_bytes(_mm512_multishift_epi64_epi8(high_shift, high), 0x30));
    }
  }

  static inline PlainRest rest(const std::byte* p, int64_t stride) {
    return rest_of_half(p + offsetof(BlockQ6_K, d), stride);
  }
};

}  // namespace

void matmul_q4_k(const MatmulArgs& args) { matmul_stream<Q4_K>(args, panel_q4_k); }
void matmul_q5_k(const MatmulArgs& args) { matmul_stream<Q5_K>(args, panel_q5_k); }
void matmul_q6_k(const MatmulArgs& args) { matmul_stream<Q6_K>(args, panel_q6_k); }

}  // namespace expertree::avx512

#endif
