// Products of the 32-element formats with int8 activations (canonical.h, C4), AVX2.
//
// One column: rows are read one after the other, as one stream; more columns: eight rows side by side, one block each per
// step; still more: panels (panel.h). vpmaddubsw multiplies unsigned weights by signed activations, and its pairs must stay
// within 16 bits: an offset format keeps its stored unsigned value (at most 31 * 127 * 2) and subtracts offset * sum(q)
// afterwards; a signed one multiplies |w| by q with w's sign (at most 128 * 127 * 2 = 32512).
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/panel.h"
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
  static constexpr bool kSigned = false;
  static __m256i dot(__m256i w, __m256i q) { return sum_pairs(_mm256_maddubs_epi16(w, q)); }
};
struct Signed {
  static constexpr bool kSigned = true;
  static __m256i dot(__m256i w, __m256i q) {
    return sum_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)));
  }
};

// The first four bytes of eight rows' blocks: scales are there.
inline __m256i first_dwords(const std::byte* w, const int64_t* offset) {
  int32_t v[kRows];
  for (int i = 0; i < kRows; ++i) std::memcpy(v + i, w + offset[i], 4);
  return _mm256_setr_epi32(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

// The binary16 in the low half of every dword.
inline __m256 low_halves(__m256i v) {
  const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

// Per format: the integers of a block, kMaxStored in magnitude at most, their offset, the scales of eight blocks.
template <typename Block_, int kMax, int kOffsetOfW>
struct HalfScale {
  using Block = Block_;
  static constexpr int kMaxStored = kMax;
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int32_t kOffset = kOffsetOfW;
  static constexpr bool kHasMin = false;
  static __m256 scales(__m256i firsts) {
    static_assert(offsetof(Block, d) == 0);
    return low_halves(firsts);
  }
};
template <typename Block, int kMax>
struct HalfScaleAndMin : HalfScale<Block, kMax, 0> {
  static constexpr bool kHasMin = true;
  static __m256 mins(__m256i firsts) {
    static_assert(offsetof(Block, m) == 2);
    return low_halves(_mm256_srli_epi32(firsts, 16));
  }
};

struct FormatQ4_0 : HalfScale<BlockQ4_0, 15, 8>, Unsigned {
  static __m256i expand(const BlockQ4_0* block) { return nibbles(block->qs); }
};
struct FormatQ4_1 : HalfScaleAndMin<BlockQ4_1, 15>, Unsigned {
  static __m256i expand(const BlockQ4_1* block) { return nibbles(block->qs); }
};
struct FormatQ5_0 : HalfScale<BlockQ5_0, 31, 16>, Unsigned {
  static __m256i expand(const BlockQ5_0* block) { return _mm256_or_si256(nibbles(block->qs), fifth_bits(block->qh)); }
};
struct FormatQ5_1 : HalfScaleAndMin<BlockQ5_1, 31>, Unsigned {
  static __m256i expand(const BlockQ5_1* block) { return _mm256_or_si256(nibbles(block->qs), fifth_bits(block->qh)); }
};
struct FormatQ8_0 : HalfScale<BlockQ8_0, 128, 0>, Signed {
  static __m256i expand(const BlockQ8_0* block) { return load_256(block->qs); }
};
struct FormatIQ4_NL : HalfScale<BlockIQ4_NL, 127, 0>, Signed {
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
  using Block = BlockMXFP4;
  static constexpr int kMaxStored = 24;
  static constexpr int64_t kBytes = sizeof(BlockMXFP4);
  static constexpr int32_t kOffset = kMXFP4Offset;
  static constexpr bool kHasMin = false;
  static __m256i expand(const BlockMXFP4* block) { return lookup(kMXFP4Unsigned, nibbles(block->qs)); }
  // 2^(e - 128); exponents 0 and 1 are subnormal.
  static __m256 scales(__m256i firsts) {
    static_assert(offsetof(BlockMXFP4, e) == 0);
    const __m256i exponent = _mm256_and_si256(firsts, _mm256_set1_epi32(255));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
    const __m256i is_normal = _mm256_cmpgt_epi32(exponent, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal));
  }
};

// Of a block of eight rows.
template <typename Format>
struct BlockScales {
  __m256 d;
  __m256 m;  // of formats with a minimum

  static inline BlockScales of(__m256i firsts) {
    BlockScales out{Format::scales(firsts), _mm256_setzero_ps()};
    if constexpr (Format::kHasMin) out.m = Format::mins(firsts);
    return out;
  }

  // acc = fma(float(S), d * dx, acc), and the minimum's step.
  [[gnu::always_inline]] inline __m256 add(__m256i dot, const Column& x, int64_t b, __m256 acc) const {
    const int32_t sum = x.sums16[2 * b] + x.sums16[2 * b + 1];
    if constexpr (Format::kOffset != 0) dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(Format::kOffset * sum));
    const __m256 dx = _mm256_set1_ps(x.d[b]);
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(d, dx), acc);
    if constexpr (Format::kHasMin) {
      acc = _mm256_fmadd_ps(_mm256_set1_ps(static_cast<float>(sum)), _mm256_mul_ps(m, dx), acc);
    }
    return acc;
  }
};

constexpr int kStreamBlocks = 64;  // of each row before the next one is read

// With few columns.
template <typename Format>
struct Kernel {
  using Block = typename Format::Block;

  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t first_column) {
    const RowGroup rows = row_group(args, row);
    Column x[kN];
    __m256 acc[kN];
    for (int c = 0; c < kN; ++c) {
      x[c] = quantized_column(args, first_column + c);
      acc[c] = _mm256_setzero_ps();
    }
    if constexpr (kN == 1) {
      acc[0] = one_column(args, rows, x[0]);
    } else {
      const std::byte* w = rows.w;
      for (int64_t b = 0; b < args.k / 32; ++b, w += Format::kBytes) {
        // The next rows, about once per cache line: the hardware does not follow eight short rows by itself.
        if (b % (64 / Format::kBytes) == 0) {
          for (int i = 0; i < kRows; ++i) __builtin_prefetch(w + rows.offset[i] + kRows * args.w_row_bytes, 0, 3);
        }
        __m256i partial[kN][kRows];
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const __m256i integers = Format::expand(reinterpret_cast<const Block*>(w + rows.offset[i]));
#pragma GCC unroll 4
          for (int c = 0; c < kN; ++c) partial[c][i] = Format::dot(integers, load_256(x[c].q + 32 * b));
        }
        const auto scales = BlockScales<Format>::of(first_dwords(w, rows.offset));
#pragma GCC unroll 4
        for (int c = 0; c < kN; ++c) acc[c] = scales.add(sum_eight(partial[c]), x[c], b, acc[c]);
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }

 private:
  // Rows are read one after the other, as one stream (prefetch.h), and each leaves its blocks' sums; then a lane is a row.
  // With more columns turning the sums around costs more than the stream gains (Q8_0, 4 columns: 0.87).
  static __m256 one_column(const MatmulArgs& args, const RowGroup& rows, const Column& x) {
    __m256 acc = _mm256_setzero_ps();
    const int64_t n_blocks = args.k / 32;
    for (int64_t b = 0; b < n_blocks; b += kStreamBlocks) {
      const int n = static_cast<int>(n_blocks - b < kStreamBlocks ? n_blocks - b : kStreamBlocks);
      const std::byte* const w = rows.w + b * Format::kBytes;
      const Ahead ahead(rows.w, kRows * args.w_row_bytes, b * kRows * Format::kBytes, n * kRows * Format::kBytes);
      alignas(32) int32_t sums[kRows][kStreamBlocks];
      alignas(32) int32_t firsts[kRows][kStreamBlocks];  // dwords of the blocks
      for (int i = 0; i < kRows; ++i) {
        const std::byte* const row = w + rows.offset[i];
        int j = 0;
        for (; j + 8 <= n; j += 8) {
          ahead.reading((i * n + j) * Format::kBytes, 8 * Format::kBytes);
          sum_blocks<8>(row + j * Format::kBytes, x.q + 32 * (b + j), 8, sums[i] + j, firsts[i] + j);
        }
        if (j < n) sum_blocks<0>(row + j * Format::kBytes, x.q + 32 * (b + j), n - j, sums[i] + j, firsts[i] + j);
      }
      for (int j = 0; j < n; j += 8) {
        __m256i dots[8], first[8];  // of 8 blocks
        load_transposed(sums, j, dots);
        load_transposed(firsts, j, first);
        ahead.finishing(j * kRows * Format::kBytes, 8 * kRows * Format::kBytes);
        for (int l = 0; l < 8 && j + l < n; ++l)
          acc = BlockScales<Format>::of(first[l]).add(dots[l], x, b + j + l, acc);
      }
    }
    return acc;
  }

  // Of n of a row's blocks, at least kAll, at most 8: the integer sums and the first dwords.
  template <int kAll>
  [[gnu::always_inline]] static inline void sum_blocks(const std::byte* w, const int8_t* q, int n, int32_t* sums,
                                                       int32_t* firsts) {
    __m256i partial[8];
#pragma GCC unroll 8
    for (int l = 0; l < 8; ++l) {
      if (l < kAll || l < n) {
        const __m256i integers = Format::expand(reinterpret_cast<const Block*>(w + l * Format::kBytes));
        partial[l] = Format::dot(integers, load_256(q + 32 * l));
        std::memcpy(firsts + l, w + l * Format::kBytes, 4);
      } else {
        partial[l] = _mm256_setzero_si256();
        firsts[l] = 0;
      }
    }
    store_256(sums, sum_eight(partial));
  }

  // by_block[l]: column j + l of the rows, a lane for each row.
  static inline void load_transposed(const int32_t (&rows)[kRows][kStreamBlocks], int j, __m256i (&by_block)[8]) {
    __m256i by_row[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) by_row[i] = load_256(rows[i] + j);
    transpose_dwords(by_row, by_block);
  }
};

// With many columns (panel.h).
template <typename Format>
struct Panel32 {
  static constexpr int kElements = 32;
  static constexpr int kFewColumns = Format::kSigned ? 4 : 2;  // more are worth an expanded panel
  static constexpr int64_t kBytes = Format::kBytes;
  static constexpr int kSteps = steps_that_fit(Format::kMaxStored, 8);
  static_assert(2 * Format::kMaxStored * 127 <= INT16_MAX);

  struct Panel {
    alignas(32) PanelBytes w;
    alignas(32) float d[kChunk / 32][kRows];
    alignas(32) float m[kChunk / 32][kRows];  // of formats with a minimum
  };

  static void expand(const std::byte* p, const int64_t* offset, int n_blocks, Panel* panel, Pace* pace) {
    for (int b = 0; b < n_blocks; ++b, p += kBytes) {
      __m256i v[kRows], w[kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
        v[i] = Format::expand(reinterpret_cast<const typename Format::Block*>(p + offset[i]));
      transpose_dwords(v, w);
#pragma GCC unroll 8
      for (int t = 0; t < kRows; ++t) store_256(panel->w[8 * b + t], w[t]);
      const auto scales = BlockScales<Format>::of(first_dwords(p, offset));
      _mm256_store_ps(panel->d[b], scales.d);
      if constexpr (Format::kHasMin) _mm256_store_ps(panel->m[b], scales.m);
      if (b == kChunk / 64) pace->step();
    }
  }

  template <int kColumns, int kPanels>
  static void multiply(const Panel* panels, int n_blocks, const Column* columns, float (*const* acc_rows)[kRows]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int b = 0; b < n_blocks; ++b) {
      __m256i dot[kPanels][kColumns];
#pragma GCC unroll 8
      for (int t = 0; t < 8; t += kSteps) {
        __m256i sum[kPanels][kColumns];
        add_products<Format::kSigned, kSteps>(panels, columns, 32 * b + 4 * t, sum);
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
          for (int c = 0; c < kColumns; ++c) {
            const __m256i part = _mm256_madd_epi16(sum[p][c], ones);
            dot[p][c] = t == 0 ? part : _mm256_add_epi32(dot[p][c], part);
            keep_here(dot[p][c]);
          }
        }
      }
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          BlockScales<Format> scales{_mm256_load_ps(panels[p].d[b]), _mm256_setzero_ps()};
          if constexpr (Format::kHasMin) scales.m = _mm256_load_ps(panels[p].m[b]);
          const __m256 acc = scales.add(dot[p][c], columns[c], b, _mm256_load_ps(acc_rows[p][c]));
          _mm256_store_ps(acc_rows[p][c], acc);
        }
      }
    }
  }
};

}  // namespace

void matmul_q4_0(const MatmulArgs& args) { matmul<Kernel<FormatQ4_0>, Panel32<FormatQ4_0>>(args); }
void matmul_q4_1(const MatmulArgs& args) { matmul<Kernel<FormatQ4_1>, Panel32<FormatQ4_1>>(args); }
void matmul_q5_0(const MatmulArgs& args) { matmul<Kernel<FormatQ5_0>, Panel32<FormatQ5_0>>(args); }
void matmul_q5_1(const MatmulArgs& args) { matmul<Kernel<FormatQ5_1>, Panel32<FormatQ5_1>>(args); }
void matmul_q8_0(const MatmulArgs& args) { matmul<Kernel<FormatQ8_0>, Panel32<FormatQ8_0>>(args); }
void matmul_iq4_nl(const MatmulArgs& args) { matmul<Kernel<FormatIQ4_NL>, Panel32<FormatIQ4_NL>>(args); }
void matmul_mxfp4(const MatmulArgs& args) { matmul<Kernel<FormatMXFP4>, Panel32<FormatMXFP4>>(args); }

}  // namespace expertree::avx2

#endif
