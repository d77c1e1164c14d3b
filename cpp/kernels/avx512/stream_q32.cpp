// Products of 32-element formats with few columns (stream.h).
#include "cpp/kernels/avx512/stream.h"
#include "cpp/tensor/blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kQuads = 4;  // of blocks, whose sums fill a register

// Self::unpack gives four blocks at p0 .. p3 as unsigned bytes: elements 0 to 15 of each in w[0], 16 to 31 in w[1];
// Self::widen turns 16 scales as they are stored (Scale, at the start of a block) into floats.
template <typename Self, typename Block, typename Scale_, int kOffset, bool kHasMin>
struct Stream32 {
  using Scale = Scale_;
  static constexpr int kElements = 32;
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int kChunkBlocks = 128;

  template <int kColumns>
  struct Chunk {
    alignas(64) int8_t q[kColumns][kChunkBlocks * 32];  // in the order of w
    alignas(64) int32_t sums[kColumns][kPanelRows][kChunkBlocks];
    alignas(64) int32_t start[kColumns][kChunkBlocks];  // -kOffset * sum(q)
    alignas(64) float x_sum[kColumns][kChunkBlocks];    // float(sum(q)), with a minimum
    alignas(64) Scale scale[kChunkBlocks][kPanelRows];
    const float* d[kColumns];

    void prepare(const StreamColumn* columns, int64_t b, int n) {
      for (int c = 0; c < kColumns; ++c) {
        d[c] = columns[c].d + b;
        for (int i = 0; i < n; i += 4) {
          const int8_t* from = columns[c].q + (b + i) * 32;
          const int64_t left = (n - i) * 32;
          const __m512i low = load_first(from, left);
          const __m512i high = load_first(from + 64, left - 64);
          _mm512_store_si512(q[c] + i * 32, _mm512_shuffle_i32x4(low, high, 0x88));
          _mm512_store_si512(q[c] + i * 32 + 64, _mm512_shuffle_i32x4(low, high, 0xdd));
        }
        for (int i = 0; i < n; i += 16) {
          const __mmask32 mask = first_lanes32(2 * (n - i));
          const __m512i sums16 = _mm512_maskz_loadu_epi16(mask, columns[c].sums16 + 2 * (b + i));
          _mm512_store_si512(start[c] + i, _mm512_madd_epi16(sums16, _mm512_set1_epi16(-kOffset)));
          if (kHasMin) {
            const __m512i x = _mm512_madd_epi16(sums16, _mm512_set1_epi16(1));
            _mm512_store_ps(x_sum[c] + i, _mm512_cvtepi32_ps(x));
          }
        }
      }
    }

    inline __attribute__((always_inline)) void add_row(const std::byte* group, int64_t stride, int r, int n,
                                                       const Ahead& ahead) {
      const std::byte* p = group + r * stride;
      const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
      for (int b = 0; b < n; b += 16) {
        const std::byte* block = p + b * kBytes;
        const int left = min_of(16, n - b);
        ahead.reading(block - group, left * kBytes);
        for (int i = 0; i < left; ++i) std::memcpy(&scale[b + i][r], block + i * kBytes, sizeof(Scale));
        __m512i part[kColumns][kQuads];
#pragma GCC unroll 4
        for (int i = 0; i < kQuads; ++i) {
          if (4 * i >= left) {
            for (int c = 0; c < kColumns; ++c) part[c][i] = _mm512_setzero_si512();
            continue;
          }
          const int last = min_of(4, left - 4 * i) - 1;
          const std::byte* quad = block + 4 * i * kBytes;
          __m512i w[2];
          Self::unpack(quad, quad + min_of(1, last) * kBytes, quad + min_of(2, last) * kBytes, quad + last * kBytes, w);
#pragma GCC unroll 4
          for (int c = 0; c < kColumns; ++c) {
            const int8_t* x = q[c] + (b + 4 * i) * 32;
            const __m512i low = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], _mm512_load_si512(x));
            part[c][i] = _mm512_dpbusd_epi32(low, w[1], _mm512_load_si512(x + 64));
          }
        }
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          const __m512i s = sum_quads(part[c][0], part[c][1], part[c][2], part[c][3]);
          const __m512i ordered = _mm512_permutexvar_epi32(order, s);
          _mm512_store_si512(sums[c][r] + b, _mm512_add_epi32(ordered, _mm512_load_si512(start[c] + b)));
        }
      }
    }

    void finish(const std::byte*, int64_t, int n, const Ahead& ahead, __m512 (&acc)[kColumns]) const {
      for (int b = 0; b < n; b += 4) {
        __m512i s[kColumns][4];
        for (int c = 0; c < kColumns; ++c) {
          load_rows(reinterpret_cast<const std::byte*>(sums[c][0] + b), sizeof(sums[c][0]), s[c]);
        }
        ahead.finishing(b * kPanelRows * kBytes, min_of(4, n - b) * kPanelRows * kBytes);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          if (b + i >= n) break;
          const Widened w = Self::widen(scale[b + i]);
#pragma GCC unroll 4
          for (int c = 0; c < kColumns; ++c) {
            const __m512 dx = set1(d[c][b + i]);
            acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[c][i]), _mm512_mul_ps(w.d, dx), acc[c]);
            if (kHasMin) acc[c] = _mm512_fmadd_ps(set1(x_sum[c][b + i]), _mm512_mul_ps(w.m, dx), acc[c]);
          }
        }
      }
    }
  };

 protected:
  struct Widened {
    __m512 d;
    __m512 m;
  };

  static inline Widened widen(const uint16_t* d) {
    const __m512 wide = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(d)));
    return {wide, wide};
  }
  static inline Widened widen(const uint8_t* exponents) {
    const __m512 wide = e8m0_halves(_mm_load_si128(reinterpret_cast<const __m128i*>(exponents)));
    return {wide, wide};
  }
  static inline Widened widen(const uint32_t* d_and_m) {
    const __m512i both = _mm512_load_si512(d_and_m);
    return {low_halves(both), high_halves(both)};
  }

 private:
  static __m512i load_first(const int8_t* p, int64_t n) {
    return n >= 64 ? load_512(p) : n > 0 ? _mm512_maskz_loadu_epi8((uint64_t{1} << n) - 1, p) : _mm512_setzero_si512();
  }
};

// 16 bytes from each of four blocks.
inline __m512i join(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3) {
  __m512i v = _mm512_castsi128_si512(load_16_bytes(p0));
  v = _mm512_inserti32x4(v, load_16_bytes(p1), 1);
  v = _mm512_inserti32x4(v, load_16_bytes(p2), 2);
  return _mm512_inserti32x4(v, load_16_bytes(p3), 3);
}

template <typename Block, typename Scale, int kOffset, bool kHasMin>
struct FourBits : Stream32<FourBits<Block, Scale, kOffset, kHasMin>, Block, Scale, kOffset, kHasMin> {
  static inline void unpack(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            __m512i (&w)[2]) {
    constexpr size_t kAt = offsetof(Block, qs);
    const __m512i v = join(p0 + kAt, p1 + kAt, p2 + kAt, p3 + kAt);
    w[0] = low_nibbles(v);
    w[1] = high_nibbles(v);
  }
};

// The fifth bits: qh of a block has elements 0 to 15 in its lower half.
template <typename Block, typename Scale, int kOffset, bool kHasMin>
struct FiveBits : Stream32<FiveBits<Block, Scale, kOffset, kHasMin>, Block, Scale, kOffset, kHasMin> {
  static inline void unpack(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            __m512i (&w)[2]) {
    constexpr size_t kAt = offsetof(Block, qs);
    const __m512i v = join(p0 + kAt, p1 + kAt, p2 + kAt, p3 + kAt);
    const uint64_t a = high_bits(p0), b = high_bits(p1), c = high_bits(p2), d = high_bits(p3);
    const auto low_half = [](uint64_t x, uint64_t y) { return (x & 0xffff) | (y & 0xffff) << 16; };
    const auto high_half = [](uint64_t x, uint64_t y) { return x >> 16 | (y & 0xffff0000); };
    const __m512i sixteen = _mm512_set1_epi8(16);
    const __m512i low = low_nibbles(v);
    const __m512i high = high_nibbles(v);
    w[0] = _mm512_mask_add_epi8(low, low_half(a, b) | low_half(c, d) << 32, low, sixteen);
    w[1] = _mm512_mask_add_epi8(high, high_half(a, b) | high_half(c, d) << 32, high, sixteen);
  }

 private:
  static inline uint64_t high_bits(const std::byte* p) {
    return static_cast<uint32_t>(load_i32(p + offsetof(Block, qh)));
  }
};

struct EightBits : Stream32<EightBits, BlockQ8_0, uint16_t, 128, false> {
  static inline void unpack(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            __m512i (&w)[2]) {
    for (int half = 0; half < 2; ++half) {
      const size_t at = offsetof(BlockQ8_0, qs) + 16 * static_cast<size_t>(half);
      w[half] = _mm512_xor_si512(join(p0 + at, p1 + at, p2 + at, p3 + at), _mm512_set1_epi8(-128));
    }
  }
};

// Nibbles that index a table of values; the table plus kOffset is unsigned.
template <typename Self, typename Block, typename Scale, int kOffset>
struct Table : Stream32<Self, Block, Scale, kOffset, false> {
  static inline void unpack(const std::byte* p0, const std::byte* p1, const std::byte* p2, const std::byte* p3,
                            __m512i (&w)[2]) {
    constexpr size_t kAt = offsetof(Block, qs);
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(Self::kValues));
    const __m512i table = _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8(static_cast<char>(kOffset))));
    const __m512i v = join(p0 + kAt, p1 + kAt, p2 + kAt, p3 + kAt);
    w[0] = _mm512_shuffle_epi8(table, low_nibbles(v));
    w[1] = _mm512_shuffle_epi8(table, high_nibbles(v));
  }
};

struct IQ4_NL : Table<IQ4_NL, BlockIQ4_NL, uint16_t, 128> {
  static constexpr const int8_t (&kValues)[16] = kIQ4Values;
};

struct MXFP4 : Table<MXFP4, BlockMXFP4, uint8_t, 12> {
  static constexpr const int8_t (&kValues)[16] = kMXFP4Values;
};

}  // namespace

void matmul_q4_0(const MatmulArgs& args) { matmul_stream<FourBits<BlockQ4_0, uint16_t, 8, false>>(args, panel_q4_0); }
void matmul_q4_1(const MatmulArgs& args) { matmul_stream<FourBits<BlockQ4_1, uint32_t, 0, true>>(args, panel_q4_1); }
void matmul_q5_0(const MatmulArgs& args) { matmul_stream<FiveBits<BlockQ5_0, uint16_t, 16, false>>(args, panel_q5_0); }
void matmul_q5_1(const MatmulArgs& args) { matmul_stream<FiveBits<BlockQ5_1, uint32_t, 0, true>>(args, panel_q5_1); }
void matmul_mxfp4(const MatmulArgs& args) { matmul_stream<MXFP4>(args, panel_mxfp4); }
void matmul_q8_0(const MatmulArgs& args) { matmul_stream<EightBits>(args, panel_q8_0); }
void matmul_iq4_nl(const MatmulArgs& args) { matmul_stream<IQ4_NL>(args, panel_iq4_nl); }

}  // namespace expertree::avx512

#endif
