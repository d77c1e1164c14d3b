// How the AVX2 products of quantised weights work with many columns (canonical.h, C4).
//
// A panel is 8 weight rows by a chunk of 256 elements, expanded to bytes in an order where a lane is a row:
//   w[t][r][j] = element 4t + j of row r, unsigned with the format's offset, or the signed weight.
// vpmaddubsw of w[t] with activations 4t .. 4t+3 broadcast gives two int16 for each row. As many of these as fit are added
// as they are, and only then does vpmaddwd make int32 of them, which multiplies by the sub-block's scale as well. So most of
// the work is one product and one sum for 32 elements, nothing is added across lanes, and the float chain of C4 runs for 8
// rows in one register, in block order. Signed weights meet activations that took their sign.
//
// Two panels are expanded at once, 4 KiB in L1, and meet the columns in groups: each broadcast serves two products.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/vector.h"
#include "cpp/kernels/prefetch.h"

namespace expertree::avx2 {
namespace {

constexpr int kChunk = 256;  // elements
constexpr int kGroupColumns = 4;  // that meet two panels at once
constexpr int64_t kStripColumns = 64;  // that share expanded panels: their sums stay on the stack

using PanelBytes = uint8_t[kChunk / 4][4 * kRows];  // w[t][4 * row + j]

inline void store_256(void* p, __m256i v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }
inline __m256i broadcast_dword(const int8_t* p) {
  int32_t dword;
  std::memcpy(&dword, p, 4);
  return _mm256_set1_epi32(dword);
}

// How many steps of 4 elements, each two products up to max_stored * 127 in an int16, add up without wrapping; a power of two
// up to n_steps.
constexpr int steps_that_fit(int max_stored, int n_steps) {
  int steps = 1;
  while (2 * steps <= n_steps && 2 * steps * 2 * max_stored * 127 <= INT16_MAX) steps *= 2;
  return steps;
}

// GCC would make all products first and add them later, from the stack: 40 spills for 64 products.
inline void keep_here(__m256i& v) { asm volatile("" : "+x"(v)); }

// Two int16 for each row: kSteps times 4 elements from `element` on, kPanels panels by kColumns columns.
template <bool kSigned, int kSteps, int kColumns, int kPanels, typename Panel>
inline __attribute__((always_inline)) void add_products(const Panel* panels, const Column* columns, int element,
                                                        __m256i (&sum)[kPanels][kColumns]) {
#pragma GCC unroll 8
  for (int t = 0; t < kSteps; ++t) {
    __m256i w[kPanels];
    __m256i magnitude[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      w[p] = load_256(panels[p].w[element / 4 + t]);
      magnitude[p] = kSigned ? _mm256_abs_epi8(w[p]) : w[p];
    }
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const __m256i x = broadcast_dword(columns[c].q + element + 4 * t);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        const __m256i product = _mm256_maddubs_epi16(magnitude[p], kSigned ? _mm256_sign_epi8(x, w[p]) : x);
        sum[p][c] = t == 0 ? product : _mm256_add_epi16(sum[p][c], product);
        keep_here(sum[p][c]);
      }
    }
  }
}

// Every column of the strip, n of them, with kPanels expanded panels: groups of kColumns, and what is left in smaller ones.
// acc[p]: float [n][kRows].
template <typename Format, int kPanels, int kColumns>
inline void multiply_columns(const typename Format::Panel* panels, int n_blocks, const Column* columns, int64_t n,
                             Pace* pace, float (*const (&acc)[kPanels])[kRows]) {
  int64_t c = 0;
  float (*at[kPanels])[kRows];
  for (; c + kColumns <= n; c += kColumns) {
    for (int p = 0; p < kPanels; ++p) at[p] = acc[p] + c;
    pace->step();
    Format::template multiply<kColumns, kPanels>(panels, n_blocks, columns + c, at);
  }
  if constexpr (kColumns > 1) {
    if (c == n) return;
    for (int p = 0; p < kPanels; ++p) at[p] = acc[p] + c;
    multiply_columns<Format, kPanels, kColumns / 2>(panels, n_blocks, columns + c, n - c, pace, at);
  }
}

// y for kPanels panels of weight rows from `row` on and the columns [strip, strip + n_columns).
template <typename Format, int kPanels>
void matmul_panels(const MatmulArgs& args, int64_t row, int64_t strip, int64_t n_columns) {
  constexpr int64_t kBlocks = kChunk / Format::kElements;  // blocks per chunk
  Column columns[kStripColumns];  // from the chunk's first element on
  for (int64_t c = 0; c < n_columns; ++c) columns[c] = quantized_column(args, strip + c);
  alignas(32) float acc[kPanels][kStripColumns][kRows];
  alignas(32) typename Format::Panel panels[kPanels];
  RowGroup groups[kPanels];
  float (*accs[kPanels])[kRows];
  for (int p = 0; p < kPanels; ++p) {
    groups[p] = row_group(args, row + p * kRows);
    accs[p] = acc[p];
    std::memset(acc[p], 0, static_cast<size_t>(n_columns) * sizeof(acc[p][0]));
  }

  const int64_t n_rows = kPanels * kRows;
  const std::byte* const next = args.w + (row + n_rows) * args.w_row_bytes;  // past the call's last row, too
  const int64_t n_steps = strip == 0 ? (n_columns + kGroupColumns - 1) / kGroupColumns + 2 * kPanels : 1;
  const int64_t n_blocks_in_row = args.k / Format::kElements;
  for (int64_t b = 0; b < n_blocks_in_row; b += kBlocks) {
    const int64_t n_blocks = n_blocks_in_row - b < kBlocks ? n_blocks_in_row - b : kBlocks;
    Pace pace(next + n_rows * b * Format::kBytes, strip == 0 ? n_rows * n_blocks * Format::kBytes : 0, n_steps);
    const int n = static_cast<int>(n_blocks);
    for (int p = 0; p < kPanels; ++p) {
      pace.step();
      Format::expand(groups[p].w + b * Format::kBytes, groups[p].offset, n, panels + p, &pace);
    }
    multiply_columns<Format, kPanels, kGroupColumns>(panels, n, columns, n_columns, &pace, accs);
    for (int64_t c = 0; c < n_columns; ++c) {
      columns[c].q += kChunk;
      columns[c].d += kBlocks;
      columns[c].sums16 += kChunk / 16;
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    const int64_t at = row + p * kRows;
    for (int64_t c = 0; c < n_columns; ++c) {
      store_rows(columns[c].y + at, args.row_end - at, _mm256_load_ps(acc[p][c]));
    }
  }
}

// Few (row_walk.h) takes up to Format::kFewColumns columns, panels take more.
template <typename Few, typename Format>
void matmul(const MatmulArgs& args) {
  if (args.n_columns <= Format::kFewColumns) {
    for_each_group<Few>(args);
    return;
  }
  for (int64_t strip = 0; strip < args.n_columns; strip += kStripColumns) {
    const int64_t left = args.n_columns - strip;
    const int64_t n_columns = left < kStripColumns ? left : kStripColumns;
    int64_t row = args.row_begin;
    for (; row + kRows < args.row_end; row += 2 * kRows) matmul_panels<Format, 2>(args, row, strip, n_columns);
    if (row < args.row_end) matmul_panels<Format, 1>(args, row, strip, n_columns);
  }
}

}  // namespace
}  // namespace expertree::avx2

#endif
