// How the AVX-512 products of quantised weights work (canonical.h, C4).
//
// A panel is 16 weight rows by a chunk of 256 elements, expanded to unsigned bytes in an order where a lane is a row:
//   w[t][r][j] = element 4t + j of row r, plus the format's offset.
// One vpdpbusd of w[t] with activations 4t .. 4t+3 broadcast then adds four products for 16 rows, so that the sum of a
// block needs no horizontal step and the float chain of C4 runs for 16 rows in one register, in block order.
//
// Up to four columns multiply the bytes as they come out of the expansion, in registers. More columns expand two panels
// once, 8 KiB in L1, and use them in groups of four columns: each broadcast of activations then serves two products.
//
// The offset makes weights unsigned. Its share, offset * sum(q), is subtracted by starting the integer sum there.
#pragma once

#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/panel_bytes.h"
#include "cpp/kernels/avx512/vector.h"
#include "cpp/kernels/prefetch.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kChunk = 256;  // elements
constexpr int kMaxProducts = 8;  // panels * columns that share registers
constexpr int kFusedColumns = 4;  // at most this many: no expanded panel in memory
// At most this many, where a chunk takes little time: weights are asked for in small steps, before and within each panel's
// expansion, before each group of columns and half-way through it.
constexpr int64_t kPacedColumns = 12;
constexpr int64_t kStripColumns = 64;  // that share an expanded panel: their sums stay on the stack

using Bytes = uint8_t[kChunk / 4][64];  // w[t][4 * row + j]

// One column's activations for a chunk.
struct Column {
  const int8_t* q;
  const float* d;
  const int16_t* sums16;
};

// Every column of the strip with kPanels expanded panels: groups of kColumns, and what is left in smaller ones.
template <typename Format, bool kPaced, int kPanels, int kColumns>
inline void multiply_columns(const typename Format::Panel* panels, int n_blocks, const Column* columns, int64_t n,
                             Pace* pace, float (*const (&acc)[kPanels])[kPanelRows]) {
  int64_t c = 0;
  for (; c + kColumns <= n; c += kColumns) {
    float (*at[kPanels])[kPanelRows];
    for (int p = 0; p < kPanels; ++p) at[p] = acc[p] + c;
    pace->step();
    Format::template multiply<kPaced, kColumns, kPanels>(panels, n_blocks, columns + c, at, pace);
  }
  if constexpr (kColumns > 1) {
    if (c == n) return;
    float (*at[kPanels])[kPanelRows];
    for (int p = 0; p < kPanels; ++p) at[p] = acc[p] + c;
    multiply_columns<Format, kPaced, kPanels, kColumns / 2>(panels, n_blocks, columns + c, n - c, pace, at);
  }
}

// One chunk of 16 rows for up to kFusedColumns columns. columns and acc have room for kFusedColumns.
template <typename Format>
inline void multiply_few(const Format& format, const std::byte* p, int64_t stride, int n_blocks, Column* columns,
                         int64_t n, float (*acc)[kPanelRows]) {
  if (n == 1) {
    format.template expand_and_multiply<1>(p, stride, n_blocks, columns, acc);
  } else if (n == 2) {
    format.template expand_and_multiply<2>(p, stride, n_blocks, columns, acc);
  } else {
    if (n == 3) columns[3] = columns[2];  // its result is not used
    format.template expand_and_multiply<4>(p, stride, n_blocks, columns, acc);
  }
}

// y for kPanels panels of weight rows from `row` on and the columns [strip, strip + n_columns). One panel may have fewer
// rows than 16.
template <typename Format, int kPanels>
void matmul_panels(const Format& format, const MatmulArgs& args, int64_t row, int64_t n_rows, int64_t strip,
                   int64_t n_columns) {
  constexpr int64_t kBlocks = kChunk / Format::kElements;  // blocks per chunk
  constexpr int64_t kChunkBytes = kBlocks * Format::kBytes;
  const int64_t block_bytes = format.block_bytes();  // at most kBytes
  const bool is_paced = n_columns > kFusedColumns && n_columns <= kPacedColumns;
  const QuantizedRows& x = *args.x_q;
  alignas(64) float acc[kPanels][kStripColumns][kPanelRows];
  alignas(64) typename Format::Panel panels[kPanels];
  alignas(64) std::byte copy[kPanelRows * kChunkBytes];  // of a panel with fewer than 16 rows
  float (*accs[kPanels])[kPanelRows];
  for (int p = 0; p < kPanels; ++p) {
    accs[p] = acc[p];
    std::memset(acc[p], 0, static_cast<size_t>(max_of<int64_t>(n_columns, kFusedColumns)) * sizeof(acc[p][0]));
  }
  if (n_rows < kPanelRows) std::memset(copy, 0, sizeof(copy));

  const std::byte* w = args.w + row * args.w_row_bytes;
  const int64_t n_blocks_in_row = args.k / Format::kElements;
  for (int64_t b = 0; b < n_blocks_in_row; b += kBlocks) {
    const int64_t n_blocks = min_of(kBlocks, n_blocks_in_row - b);
    const std::byte* chunk = w + b * block_bytes;
    Column columns[kStripColumns];
    for (int64_t c = 0; c < n_columns; ++c) {
      const int64_t x_row = args.x_rows ? args.x_rows[strip + c] : strip + c;
      columns[c] = {x.q + x_row * x.q_stride + b * Format::kElements, x.d + x_row * x.d_stride + b,
                    x.sums16 + x_row * x.sums_stride + b * Format::kElements / 16};
    }
    int64_t stride = args.w_row_bytes;
    Pace pace;
    if (n_rows < kPanelRows) {
      for (int64_t r = 0; r < n_rows; ++r) {
        std::memcpy(copy + r * kChunkBytes, chunk + r * stride, static_cast<size_t>(n_blocks * block_bytes));
      }
      chunk = copy;
      stride = kChunkBytes;
    } else if (strip == 0) {
      // Past the last row of the call as well: its caller goes on there, as a rule.
      int64_t n_steps = 1;
      if (n_columns > kFusedColumns) n_steps = (n_columns * kPanels + kMaxProducts - 1) / kMaxProducts;
      if (is_paced) n_steps = Format::kPacedSteps * n_steps + 2 * kPanels;
      pace = Pace(w + n_rows * (args.w_row_bytes + b * block_bytes), n_rows * n_blocks * block_bytes, n_steps);
      if (n_columns <= kFusedColumns) pace.step();
    }
    const int n = static_cast<int>(n_blocks);
    if (n_columns <= kFusedColumns) {
      for (int p = 0; p < kPanels; ++p) {
        multiply_few(format, chunk + p * kPanelRows * stride, stride, n, columns, n_columns, accs[p]);
      }
    } else {
      constexpr int kColumns = kMaxProducts / kPanels;
      Pace none;
      for (int p = 0; p < kPanels; ++p) {
        format.expand(chunk + p * kPanelRows * stride, stride, n, panels + p, is_paced ? &pace : &none);
      }
      if (is_paced) {
        multiply_columns<Format, true, kPanels, kColumns>(panels, n, columns, n_columns, &pace, accs);
      } else {
        multiply_columns<Format, false, kPanels, kColumns>(panels, n, columns, n_columns, &pace, accs);
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    const __mmask16 mask = first_lanes(n_rows - p * kPanelRows);
    for (int64_t c = 0; c < n_columns; ++c) {
      const int64_t y_row = args.y_rows ? args.y_rows[strip + c] : strip + c;
      float* y = args.y + y_row * args.y_stride + row + p * kPanelRows;
      _mm512_mask_storeu_ps(y, mask, _mm512_load_ps(acc[p][c]));
    }
  }
}

template <typename Format>
void matmul(const MatmulArgs& args, const Format& format = Format()) {
  constexpr int64_t kPair = 2 * kPanelRows;
  for (int64_t strip = 0; strip < args.n_columns; strip += kStripColumns) {
    const int64_t n_columns = min_of(kStripColumns, args.n_columns - strip);
    int64_t row = args.row_begin;
    for (; row + kPair <= args.row_end; row += kPair) {
      matmul_panels<Format, 2>(format, args, row, kPair, strip, n_columns);
    }
    for (; row < args.row_end; row += kPanelRows) {
      const int64_t n_rows = min_of<int64_t>(kPanelRows, args.row_end - row);
      matmul_panels<Format, 1>(format, args, row, n_rows, strip, n_columns);
    }
  }
}

}  // namespace
}  // namespace expertree::avx512

#endif  // EXPERTREE_AVX512
