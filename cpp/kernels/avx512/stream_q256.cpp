// Products of 256-element formats with few columns (stream.h).
#include "cpp/kernels/avx512/stream.h"
#include "cpp/tensor/blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// Streams of the formats whose sums of four products fit in 16 bits. Self::arrange puts a block's activations in the
// order of Self::unpack's bytes; Self::scales gives, for four blocks, 16 bytes each that Self::scale_of spreads.
template <typename Self, typename Block>
struct Stream256 {
  static constexpr int kElements = 256;
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int kChunkBlocks = 16;

  template <int kColumns>
  struct Chunk {
    alignas(64) int8_t q[kColumns][kChunkBlocks * 256];
    alignas(64) int32_t sums[kColumns][kPanelRows][kChunkBlocks];
    const int16_t* sums16[kColumns];
    const float* d[kColumns];

    void prepare(const StreamColumn* columns, int64_t b, int n) {
      for (int c = 0; c < kColumns; ++c) {
        for (int i = 0; i < n; ++i) Self::arrange(columns[c].q + (b + i) * 256, q[c] + i * 256);
        sums16[c] = columns[c].sums16 + b * 16;
        d[c] = columns[c].d + b;
      }
    }

    inline __attribute__((always_inline)) void add_row(const std::byte* group, int64_t stride, int r, int n,
                                                       const Ahead& ahead) {
      const std::byte* p = group + r * stride;
      for (int b = 0; b < n; b += 4) {
        const int last = min_of(4, n - b) - 1;
        __m512i part[kColumns][4];
        alignas(64) uint8_t scales[4][16];
        const std::byte* block = p + b * kBytes;
        Self::scales(block, block + min_of(1, last) * kBytes, block + min_of(2, last) * kBytes, block + last * kBytes,
                     scales);
        ahead.reading(block - group, 4 * kBytes);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          if (i > last) {
            for (int c = 0; c < kColumns; ++c) part[c][i] = _mm512_setzero_si512();
            continue;
          }
          __m512i w[4];
          Self::unpack(block + i * kBytes, w);
          const auto scale = Self::spread(scales[i]);
          for (int c = 0; c < kColumns; ++c) {
            const int8_t* x = q[c] + (b + i) * 256;
            __m512i total = Self::start(scale, sums16[c] + (b + i) * 16);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
              const __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[j], _mm512_load_si512(x + 64 * j));
              total = _mm512_dpwssd_epi32(total, sum, scale.v[j]);
            }
            part[c][i] = total;
          }
        }
        for (int c = 0; c < kColumns; ++c) {
          const __m512i s = sum_quads(part[c][0], part[c][1], part[c][2], part[c][3]);
          const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
          const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
          _mm_store_si128(reinterpret_cast<__m128i*>(sums[c][r] + b), all);
        }
      }
    }

    void finish(const std::byte* p, int64_t stride, int n, const Ahead& ahead, __m512 (&acc)[kColumns]) const {
      for (int b = 0; b < n; b += 4) {
        __m512i s[kColumns][4];
        for (int c = 0; c < kColumns; ++c) {
          load_rows(reinterpret_cast<const std::byte*>(sums[c][0] + b), sizeof(sums[c][0]), s[c]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          if (b + i >= n) break;
          ahead.finishing((b + i) * kPanelRows * kBytes, kPanelRows * kBytes);
          const auto rest = Self::rest(p + (b + i) * kBytes, stride);
#pragma GCC unroll 4
          for (int c = 0; c < kColumns; ++c) {
            const __m512 dx = set1(d[c][b + i]);
            acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[c][i]), _mm512_mul_ps(rest.d, dx), acc[c]);
            acc[c] = rest.subtract_min(sums16[c] + (b + i) * 16, dx, acc[c]);
          }
        }
      }
    }
  };
};

// Four multipliers as (int16, 0), for vpdpwssd.
struct SpreadScales {
  __m512i v[4];
};

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

  struct Rest {
    __m512 d;
    __m512 dmin;
    __m512i min[8];

    inline __m512 subtract_min(const int16_t* sums16, __m512 dx, __m512 acc) const {
      __m512i m = _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) m = _mm512_dpwssd_epi32(m, min[i], _mm512_set1_epi32(load_i32(sums16 + 2 * i)));
      return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(m), _mm512_mul_ps(dmin, dx), acc);
    }
  };

  static inline Rest rest(const std::byte* p, int64_t stride) {
    Rest out;
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

  struct Spread {
    __m512i v[4];
    __m256i times_offset;  // int16, -32 * scale
  };

  static inline Spread spread(const uint8_t* scales) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
    Spread out;
    out.times_offset = _mm256_mullo_epi16(wide, _mm256_set1_epi16(-32));
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {  // scales 4j .. 4j+3, one per 128-bit lane
      const __m512i first = _mm512_set_epi32(0x0706, 0x0706, 0x0706, 0x0706, 0x0504, 0x0504, 0x0504, 0x0504, 0x0302,
                                             0x0302, 0x0302, 0x0302, 0x0100, 0x0100, 0x0100, 0x0100);
      const __m512i index = _mm512_add_epi8(first, _mm512_set1_epi32(0x0808 * j));
      out.v[j] = _mm512_maskz_permutexvar_epi8(0x3333333333333333, index, _mm512_castsi256_si512(wide));
    }
    return out;
  }

  static inline __m512i start(const Spread& scale, const int16_t* sums16) {
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums16));
    return _mm512_zextsi256_si512(_mm256_madd_epi16(scale.times_offset, sums));
  }

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

  struct Rest {
    __m512 d;
    inline __m512 subtract_min(const int16_t*, __m512, __m512 acc) const { return acc; }
  };

  static inline Rest rest(const std::byte* p, int64_t stride) {
    alignas(32) uint16_t halves[kPanelRows];
    copy_from_rows(p + offsetof(BlockQ6_K, d), stride, halves);
    return {_mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)))};
  }
};

}  // namespace

void matmul_q4_k(const MatmulArgs& args) { matmul_stream<Q4_K>(args, panel_q4_k); }
void matmul_q5_k(const MatmulArgs& args) { matmul_stream<Q5_K>(args, panel_q5_k); }
void matmul_q6_k(const MatmulArgs& args) { matmul_stream<Q6_K>(args, panel_q6_k); }

}  // namespace expertree::avx512

#endif
