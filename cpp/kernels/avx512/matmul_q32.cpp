// Products of the 32-element formats with int8 activations (canonical.h, C4). panel.h has the plan.
#include "cpp/kernels/avx512/panel.h"
#include "cpp/tensor/blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kBlocks = kChunk / 32;

// What 16 rows hold besides the low bits of their elements.
struct Scales {
  alignas(64) float d[kBlocks][kPanelRows];
  alignas(64) float m[kBlocks][kPanelRows];       // only for formats with a minimum
  alignas(64) uint32_t high[kBlocks][kPanelRows];  // only for five bits: qh
};

struct Panel32 {
  alignas(64) Bytes w;
  Scales scales;
};

// What a column adds to a chunk, ready to be broadcast.
template <int kOffset, bool kHasMin>
struct Operand {
  const int8_t* q;
  alignas(32) int32_t start[kBlocks];  // -offset * sum(q)
  alignas(32) float sum[kBlocks];      // float(sum(q))
  alignas(32) float d[kBlocks];

  void prepare(const Column& column, int n_blocks) {
    q = column.q;
    const __mmask8 mask = static_cast<__mmask8>(first_lanes(n_blocks));
    _mm256_store_ps(d, _mm256_maskz_loadu_ps(mask, column.d));
    const __m256i sums = _mm256_maskz_loadu_epi16(first_lanes(2 * n_blocks), column.sums16);
    if (kOffset != 0) {
      const __m256i products = _mm256_madd_epi16(sums, _mm256_set1_epi16(-kOffset));
      _mm256_store_si256(reinterpret_cast<__m256i*>(start), products);
    }
    if (kHasMin) _mm256_store_ps(sum, _mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1))));
  }
};

// acc = fma(float(S), d * dx, acc), and the minimum's step, for each block b of kPanels * 16 rows and kColumns columns.
// get_w(p, b, w) gives the bytes of block b of panel p.
template <int kOffset, bool kHasMin, int kColumns, int kPanels, typename GetWeights>
inline __attribute__((always_inline)) void multiply_blocks(const Scales* const* scales, int n_blocks,
                                                           const Column* columns, const GetWeights& get_w,
                                                           float (*const* acc_rows)[kPanelRows]) {
  Operand<kOffset, kHasMin> x[kColumns];
  __m512 acc[kPanels][kColumns];
  for (int c = 0; c < kColumns; ++c) {
    x[c].prepare(columns[c], n_blocks);
    for (int p = 0; p < kPanels; ++p) acc[p][c] = _mm512_load_ps(acc_rows[p][c]);
  }
  for (int b = 0; b < n_blocks; ++b) {
    __m512i w[kPanels][8];
    for (int p = 0; p < kPanels; ++p) get_w(p, b, w[p]);
    __m512i sum[kPanels][kColumns];
    for (int c = 0; c < kColumns; ++c) {
      const __m512i start = kOffset != 0 ? _mm512_set1_epi32(x[c].start[b]) : _mm512_setzero_si512();
      for (int p = 0; p < kPanels; ++p) sum[p][c] = start;
    }
    // Columns innermost: as many independent chains as there are columns (vpdpbusd takes 5 cycles).
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const __m512i x_part = _mm512_set1_epi32(load_i32(x[c].q + 32 * b + 4 * t));
        for (int p = 0; p < kPanels; ++p) sum[p][c] = _mm512_dpbusd_epi32(sum[p][c], w[p][t], x_part);
      }
    }
    for (int p = 0; p < kPanels; ++p) {
      const __m512 d = _mm512_load_ps(scales[p]->d[b]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const __m512 dx = set1(x[c].d[b]);
        acc[p][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[p][c]), _mm512_mul_ps(d, dx), acc[p][c]);
        if (kHasMin) {
          const __m512 m = _mm512_load_ps(scales[p]->m[b]);
          acc[p][c] = _mm512_fmadd_ps(set1(x[c].sum[b]), _mm512_mul_ps(m, dx), acc[p][c]);
        }
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    for (int c = 0; c < kColumns; ++c) _mm512_store_ps(acc_rows[p][c], acc[p][c]);
  }
}

// What panel.h asks of a format. Self::expand_scales fills Scales from 16 rows at p, stride bytes apart;
// Self::expand_block gives the bytes of block b, which lies at p.
template <typename Self, typename Block, int kOffset, bool kHasMin>
struct Format32 {
  using Panel = Panel32;
  static constexpr int kElements = 32;
  static constexpr int kPacedSteps = 1;  // in each group of columns: a loop over blocks that is broken up is slower
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int64_t block_bytes() { return kBytes; }

  static void expand(const std::byte* p, int64_t stride, int n_blocks, Panel* panel, Pace* pace) {
    pace->step();
    Self::expand_scales(p, stride, n_blocks, &panel->scales);
    pace->step();
    for (int b = 0; b < n_blocks; ++b) {
      __m512i w[8];
      Self::expand_block(p + b * kBytes, stride, panel->scales, b, w);
      for (int t = 0; t < 8; ++t) _mm512_store_si512(panel->w[8 * b + t], w[t]);
    }
  }

  // kPanels panels, acc[p] being those of panel p.
  template <bool kPaced, int kColumns, int kPanels>
  static void multiply(const Panel* panels, int n_blocks, const Column* columns, float (*const* acc)[kPanelRows],
                       Pace*) {
    const Scales* scales[kPanels];
    for (int p = 0; p < kPanels; ++p) scales[p] = &panels[p].scales;
    const auto load_w = [&](int p, int b, __m512i(&w)[8]) {
      for (int t = 0; t < 8; ++t) w[t] = _mm512_load_si512(panels[p].w[8 * b + t]);
    };
    multiply_blocks<kOffset, kHasMin, kColumns, kPanels>(scales, n_blocks, columns, load_w, acc);
  }

  template <int kColumns>
  static void expand_and_multiply(const std::byte* p, int64_t stride, int n_blocks, const Column* columns,
                                  float (*acc)[kPanelRows]) {
    Scales scales;
    Self::expand_scales(p, stride, n_blocks, &scales);
    const auto expand_w = [&](int, int b, __m512i(&w)[8]) { Self::expand_block(p + b * kBytes, stride, scales, b, w); };
    const Scales* const all[] = {&scales};
    float (*const accs[])[kPanelRows] = {acc};
    multiply_blocks<kOffset, kHasMin, kColumns, 1>(all, n_blocks, columns, expand_w, accs);
  }

  // Scales at the start of the block: a half, or two.
  static void expand_scales(const std::byte* p, int64_t stride, int n_blocks, Scales* scales) {
    if (kHasMin) {
      alignas(64) uint32_t halves[kBlocks][kPanelRows];
      for (int b = 0; b < n_blocks; ++b) copy_from_rows(p + b * kBytes, stride, halves[b]);
      for (int b = 0; b < n_blocks; ++b) {
        const __m512i both = _mm512_load_si512(halves[b]);
        _mm512_store_ps(scales->d[b], low_halves(both));
        _mm512_store_ps(scales->m[b], high_halves(both));
      }
    } else {
      alignas(64) uint16_t halves[kBlocks][kPanelRows];
      for (int b = 0; b < n_blocks; ++b) copy_from_rows(p + b * kBytes, stride, halves[b]);
      for (int b = 0; b < n_blocks; ++b) {
        const __m256i half = _mm256_load_si256(reinterpret_cast<const __m256i*>(halves[b]));
        _mm512_store_ps(scales->d[b], _mm512_cvtph_ps(half));
      }
    }
  }
};

// 16 bytes of nibbles: elements 0 to 15 low, 16 to 31 high.
inline void expand_nibbles(const std::byte* qs, int64_t stride, __m512i (&w)[8]) {
  __m512i raw[4];
  load_rows(qs, stride, raw);
  for (int t = 0; t < 4; ++t) {
    w[t] = low_nibbles(raw[t]);
    w[4 + t] = high_nibbles(raw[t]);
  }
}

template <typename Block, int kOffset, bool kHasMin>
struct FourBits : Format32<FourBits<Block, kOffset, kHasMin>, Block, kOffset, kHasMin> {
  static void expand_block(const std::byte* p, int64_t stride, const Scales&, int, __m512i (&w)[8]) {
    expand_nibbles(p + offsetof(Block, qs), stride, w);
  }
};

template <typename Block, int kOffset, bool kHasMin>
struct FiveBits : Format32<FiveBits<Block, kOffset, kHasMin>, Block, kOffset, kHasMin> {
  using Base = Format32<FiveBits<Block, kOffset, kHasMin>, Block, kOffset, kHasMin>;

  static void expand_scales(const std::byte* p, int64_t stride, int n_blocks, Scales* scales) {
    for (int b = 0; b < n_blocks; ++b) {
      copy_from_rows(p + b * Base::kBytes + offsetof(Block, qh), stride, scales->high[b]);
    }
    Base::expand_scales(p, stride, n_blocks, scales);
  }

  static void expand_block(const std::byte* p, int64_t stride, const Scales& scales, int b, __m512i (&w)[8]) {
    // vpmultishiftqb: byte j of a row's dword gets 8 bits that start at bit 4t + j - 4 of its qh, so that bit 4 of the
    // byte is the fifth bit of element 4t + j. Two rows share a qword; shifts wrap at 64.
    const __m512i first = _mm512_set1_epi64(0x1f1e1d1cfffefdfc);
    const __m512i qh = _mm512_load_si512(scales.high[b]);
    expand_nibbles(p + offsetof(Block, qs), stride, w);
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t) {
      const __m512i shift = _mm512_add_epi8(first, _mm512_set1_epi8(static_cast<char>(4 * t)));
      w[t] = _mm512_or_si512(w[t], and_bytes(_mm512_multishift_epi64_epi8(shift, qh), 16));
    }
  }
};

struct EightBits : Format32<EightBits, BlockQ8_0, 128, false> {
  static void expand_block(const std::byte* p, int64_t stride, const Scales&, int, __m512i (&w)[8]) {
    for (int half = 0; half < 2; ++half) {
      __m512i v[4];
      load_rows(p + offsetof(BlockQ8_0, qs) + 16 * half, stride, v);
      for (int t = 0; t < 4; ++t) w[4 * half + t] = _mm512_xor_si512(v[t], _mm512_set1_epi8(-128));
    }
  }
};

// Nibbles that index a table of values; the table plus kOffset is unsigned.
template <int kOffset>
inline void expand_table(const std::byte* qs, int64_t stride, const int8_t (&values)[16], __m512i (&w)[8]) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  const __m512i lanes = _mm512_broadcast_i32x4(_mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(kOffset))));
  expand_nibbles(qs, stride, w);
  for (int t = 0; t < 8; ++t) w[t] = _mm512_shuffle_epi8(lanes, w[t]);
}

struct IQ4_NL : Format32<IQ4_NL, BlockIQ4_NL, 128, false> {
  static void expand_block(const std::byte* p, int64_t stride, const Scales&, int, __m512i (&w)[8]) {
    expand_table<128>(p + offsetof(BlockIQ4_NL, qs), stride, kIQ4Values, w);
  }
};

struct MXFP4 : Format32<MXFP4, BlockMXFP4, 12, false> {
  static void expand_scales(const std::byte* p, int64_t stride, int n_blocks, Scales* scales) {
    alignas(16) uint8_t exponents[kBlocks][kPanelRows];
    for (int b = 0; b < n_blocks; ++b) copy_from_rows(p + b * kBytes, stride, exponents[b]);
    for (int b = 0; b < n_blocks; ++b) {
      const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(exponents[b]));
      _mm512_store_ps(scales->d[b], e8m0_halves(bytes));
    }
  }

  static void expand_block(const std::byte* p, int64_t stride, const Scales&, int, __m512i (&w)[8]) {
    expand_table<12>(p + offsetof(BlockMXFP4, qs), stride, kMXFP4Values, w);
  }
};

}  // namespace

void panel_q4_0(const MatmulArgs& args) { matmul<FourBits<BlockQ4_0, 8, false>>(args); }
void panel_q4_1(const MatmulArgs& args) { matmul<FourBits<BlockQ4_1, 0, true>>(args); }
void panel_q5_0(const MatmulArgs& args) { matmul<FiveBits<BlockQ5_0, 16, false>>(args); }
void panel_q5_1(const MatmulArgs& args) { matmul<FiveBits<BlockQ5_1, 0, true>>(args); }
void panel_q8_0(const MatmulArgs& args) { matmul<EightBits>(args); }
void panel_iq4_nl(const MatmulArgs& args) { matmul<IQ4_NL>(args); }
void panel_mxfp4(const MatmulArgs& args) { matmul<MXFP4>(args); }

}  // namespace expertree::avx512

#endif
