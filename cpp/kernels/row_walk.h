// How products walk over groups of weight rows, where a lane is a row (AVX2, NEON). Everything is static: each instruction
// set has its own copy (no symbol may be shared between them).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/kernels/kernel_table.h"

namespace expertree {

constexpr int kWalkColumns = 4;  // activation columns that share one expansion of a weight block

// Up to kRows weight rows that advance together. A missing row repeats the last one; its result is not stored.
template <int kRows>
struct WalkRows {
  const std::byte* w;
  int64_t offset[kRows];  // bytes from w to each row
};

template <int kRows>
static inline WalkRows<kRows> walk_rows(const MatmulArgs& args, int64_t row) {
  WalkRows<kRows> group;
  group.w = args.w + row * args.w_row_bytes;
  const int64_t last = args.row_end - row - 1;
  for (int64_t i = 0; i < kRows; ++i) group.offset[i] = (i < last ? i : last) * args.w_row_bytes;
  return group;
}

// One column's int8 activations and where its outputs go.
struct WalkColumn {
  const int8_t* q;
  const float* d;
  const int16_t* sums16;
  float* y;
};

static inline WalkColumn quantized_column(const MatmulArgs& args, int64_t c) {
  const QuantizedRows& x = *args.x_q;
  const int64_t x_row = args.x_rows ? args.x_rows[c] : c;
  const int64_t y_row = args.y_rows ? args.y_rows[c] : c;
  return {x.q + x_row * x.q_stride, x.d + x_row * x.d_stride, x.sums16 + x_row * x.sums_stride,
          args.y + y_row * args.y_stride};
}

// Calls Kernel::run<n>(args, row, first_column) for groups of kRows rows and up to kWalkColumns columns. Rows go outside:
// a group of rows is read from memory once and stays in the cache for the further columns.
template <typename Kernel, int kRows>
static inline void walk_groups(const MatmulArgs& args) {
  static_assert(kWalkColumns == 4);
  for (int64_t row = args.row_begin; row < args.row_end; row += kRows) {
    int64_t c = 0;
    for (; c + kWalkColumns <= args.n_columns; c += kWalkColumns) Kernel::template run<kWalkColumns>(args, row, c);
    switch (args.n_columns - c) {
      case 1: Kernel::template run<1>(args, row, c); break;
      case 2: Kernel::template run<2>(args, row, c); break;
      case 3: Kernel::template run<3>(args, row, c); break;
      default: break;
    }
  }
}

}  // namespace expertree
