// Products of the 32-element formats with int8 activations (canonical.h, C4), AVX2.
//
// Eight rows advance together, one block each per step. vpmaddubsw multiplies unsigned weights by signed activations,
// and its pairs must stay within 16 bits: an offset format keeps its stored unsigned value (at most 31 * 127 * 2) and
// subtracts offset * sum(q) afterwards; a signed one multiplies |w| by q with w's sign (at most 128 * 127 * 2 = 32512).
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/vector.h"
#include "cpp/tensor/blocks.h"

namespace expertree::avx2 {
namespace {

// Elements 0-15 from the low nibbles, 16-31 from the high ones.
inline __m256i nibbles(const uint8_t* qs) {
  const __m128i bytes = load_128(qs);
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// 16 in byte i where bit i is set.
inline __m256i fifth_bits(const uint8_t* qh) {
  int32_t bits;
  std::memcpy(&bits, qh, 4);
  const __m256i spread = _mm256_shuffle_epi8(
      _mm256_set1_epi32(bits),
      _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i mask = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask), _mm256_set1_epi8(16));
}

inline __m256i lookup(const int8_t* table, __m256i index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_128(table)), index);
}

inline __m256i sum_pairs(__m256i products) { return _mm256_madd_epi16(products, _mm256_set1_epi16(1)); }

struct Unsigned {
  static __m256i dot(__m256i w, __m256i q) { return sum_pairs(_mm256_maddubs_epi16(w, q)); }
};
struct Signed {
  static __m256i dot(__m256i w, __m256i q) {
    return sum_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)));
  }
};

// Per format: the integers of a block, their offset, the scales of eight blocks.
template <typename Block, int kOffsetOfW>
struct HalfScale {
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int32_t kOffset = kOffsetOfW;
  static constexpr bool kHasMin = false;
  static __m256 scales(const std::byte* w, const int64_t* offset) {
    return load_halves(w + offsetof(Block, d), offset);
  }
};
template <typename Block>
struct HalfScaleAndMin : HalfScale<Block, 0> {
  static constexpr bool kHasMin = true;
  static __m256 mins(const std::byte* w, const int64_t* offset) { return load_halves(w + offsetof(Block, m), offset); }
};

struct FormatQ4_0 : HalfScale<BlockQ4_0, 8>, Unsigned {
  static __m256i expand(const BlockQ4_0* block) { return nibbles(block->qs); }
};
struct FormatQ4_1 : HalfScaleAndMin<BlockQ4_1>, Unsigned {
  static __m256i expand(const BlockQ4_1* block) { return nibbles(block->qs); }
};
struct FormatQ5_0 : HalfScale<BlockQ5_0, 16>, Unsigned {
  static __m256i expand(const BlockQ5_0* block) { return _mm256_or_si256(nibbles(block->qs), fifth_bits(block->qh)); }
};
struct FormatQ5_1 : HalfScaleAndMin<BlockQ5_1>, Unsigned {
  static __m256i expand(const BlockQ5_1* block) { return _mm256_or_si256(nibbles(block->qs), fifth_bits(block->qh)); }
};
struct FormatQ8_0 : HalfScale<BlockQ8_0, 0>, Signed {
  static __m256i expand(const BlockQ8_0* block) { return load_256(block->qs); }
};
struct FormatIQ4_NL : HalfScale<BlockIQ4_NL, 0>, Signed {
  static __m256i expand(const BlockIQ4_NL* block) { return lookup(kIQ4Values, nibbles(block->qs)); }
};

// kMXFP4Values + 12, so that they are unsigned.
constexpr int32_t kMXFP4Offset = 12;
alignas(16) constexpr int8_t kMXFP4Unsigned[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr bool mxfp4_tables_agree() {
  for (int i = 0; i < 16; ++i) {
    if (kMXFP4Unsigned[i] != kMXFP4Values[i] + kMXFP4Offset) return false;
  }
  return true;
}
static_assert(mxfp4_tables_agree());

struct FormatMXFP4 : Unsigned {
  static constexpr int64_t kBytes = sizeof(BlockMXFP4);
  static constexpr int32_t kOffset = kMXFP4Offset;
  static constexpr bool kHasMin = false;
  static __m256i expand(const BlockMXFP4* block) { return lookup(kMXFP4Unsigned, nibbles(block->qs)); }
  // 2^(e - 128); exponents 0 and 1 are subnormal.
  static __m256 scales(const std::byte* w, const int64_t* offset) {
    uint8_t e[kRows];
    for (int i = 0; i < kRows; ++i) e[i] = static_cast<uint8_t>(w[offset[i]]);
    const __m256i exponent = _mm256_setr_epi32(e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7]);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
    const __m256i is_normal = _mm256_cmpgt_epi32(exponent, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal));
  }
};

template <typename Format, typename Block>
struct Kernel {
  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t first_column) {
    const RowGroup rows = row_group(args, row);
    Column x[kN];
    __m256 acc[kN];
    for (int c = 0; c < kN; ++c) {
      x[c] = quantized_column(args, first_column + c);
      acc[c] = _mm256_setzero_ps();
    }
    const std::byte* w = rows.w;
    for (int64_t b = 0; b < args.k / 32; ++b, w += Format::kBytes) {
      if (b % (64 / Format::kBytes) == 0) {  // about once per cache line
        for (int i = 0; i < kRows; ++i) prefetch_next_group(w + rows.offset[i], args.w_row_bytes, 1);
      }
      __m256i partial[kN][kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m256i integers = Format::expand(reinterpret_cast<const Block*>(w + rows.offset[i]));
#pragma GCC unroll 4
        for (int c = 0; c < kN; ++c) partial[c][i] = Format::dot(integers, load_256(x[c].q + 32 * b));
      }
      const __m256 d = Format::scales(w, rows.offset);
      __m256 m = _mm256_setzero_ps();
      if constexpr (Format::kHasMin) m = Format::mins(w, rows.offset);
#pragma GCC unroll 4
      for (int c = 0; c < kN; ++c) {
        __m256i dot = sum_eight(partial[c]);
        const int32_t sum = x[c].sums16[2 * b] + x[c].sums16[2 * b + 1];
        if constexpr (Format::kOffset != 0) dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(Format::kOffset * sum));
        const __m256 dx = _mm256_set1_ps(x[c].d[b]);
        acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(d, dx), acc[c]);
        if constexpr (Format::kHasMin) {
          acc[c] = _mm256_fmadd_ps(_mm256_set1_ps(static_cast<float>(sum)), _mm256_mul_ps(m, dx), acc[c]);
        }
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }
};

}  // namespace

void matmul_q4_0(const MatmulArgs& args) { for_each_group<Kernel<FormatQ4_0, BlockQ4_0>>(args); }
void matmul_q4_1(const MatmulArgs& args) { for_each_group<Kernel<FormatQ4_1, BlockQ4_1>>(args); }
void matmul_q5_0(const MatmulArgs& args) { for_each_group<Kernel<FormatQ5_0, BlockQ5_0>>(args); }
void matmul_q5_1(const MatmulArgs& args) { for_each_group<Kernel<FormatQ5_1, BlockQ5_1>>(args); }
void matmul_q8_0(const MatmulArgs& args) { for_each_group<Kernel<FormatQ8_0, BlockQ8_0>>(args); }
void matmul_iq4_nl(const MatmulArgs& args) { for_each_group<Kernel<FormatIQ4_NL, BlockIQ4_NL>>(args); }
void matmul_mxfp4(const MatmulArgs& args) { for_each_group<Kernel<FormatMXFP4, BlockMXFP4>>(args); }

}  // namespace expertree::avx2

#endif
