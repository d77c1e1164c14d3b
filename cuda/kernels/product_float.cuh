// Products of float weights (canonical.h, C2): half a warp has kRows weight rows and up to kColumns input rows, a lane for
// each of the 16 virtual lanes.
#pragma once

#include "cpp/tensor/half.h"
#include "cuda/kernels/product_args.cuh"

namespace expertree::cuda {

template <DType>
struct FloatWeights;
template <>
struct FloatWeights<DType::kF32> {
  static constexpr int kElements = 4;  // of 16 bytes
  __device__ static float at(const Words<16>& piece, int j) { return __uint_as_float(piece.w[j]); }
};
template <>
struct FloatWeights<DType::kF16> {
  static constexpr int kElements = 8;
  __device__ static float at(const Words<16>& piece, int j) { return half_at(piece.w[j / 2], j % 2); }
};
template <>
struct FloatWeights<DType::kBF16> {
  static constexpr int kElements = 8;
  __device__ static float at(const Words<16>& piece, int j) {
    return bfloat16_to_float(static_cast<uint16_t>(piece.w[j / 2] >> (16 * (j % 2))));
  }
};

constexpr int float_rows_of_half_warp(int columns) { return columns > 4 ? 2 : 4; }

template <DType kType, int kColumns, bool kPair>
__global__ void __launch_bounds__(kProductThreads) product_float(ProductArgs args) {
  using W = FloatWeights<kType>;
  constexpr int kRows = float_rows_of_half_warp(kColumns);
  static_assert(kRows * kColumns <= 16);
  const GroupOfRows group = group_of_block(args);
  const int tile = static_cast<int>(blockIdx.x) / args.n_column_tiles;
  const int first = static_cast<int>(blockIdx.x) % args.n_column_tiles * kColumns;
  const int n_columns = min(kColumns, group.count - first);
  if (n_columns <= 0) return;
  const int v = static_cast<int>(threadIdx.x % 16);
  const int half = static_cast<int>(threadIdx.x / 16);
  const int first_row = (tile * kProductWarps * 2 + half) * (kPair ? kRows / 2 : kRows);
  const uint8_t* codes[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = min(first_row + (kPair ? r / 2 : r), args.rows - 1);
    codes[r] = packed_row(args.w[kPair ? r % 2 : 0], group.expert, row).plane[kCodes];
  }
  const int my_row = v / kColumns;
  const int my_column = v % kColumns;
  const float* x[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    x[i] = args.x.f32 + input_row(args, group.begin + first + min(i, n_columns - 1)) * args.x.f32_stride;
  }
  float acc[kRows][kColumns] = {};
  for (int begin = 0; begin < args.k; begin += 16 * W::kElements) {
    Words<16> piece[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      piece[r] = load_words<16>(codes[r] + (begin / W::kElements + v) * 16);
    }
#pragma unroll
    for (int j = 0; j < W::kElements; ++j) {
      const int element = begin + 16 * j + v;
      if (element >= args.k) break;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i >= n_columns) break;
        const float value = __ldg(x[i] + element);
#pragma unroll
        for (int r = 0; r < kRows; ++r) acc[r][i] = __fmaf_rn(W::at(piece[r], j), value, acc[r][i]);
      }
    }
  }
  float mine = 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (i >= n_columns) break;
      const float sum = gpu_group_sum<16>(acc[r][i]);
      if (v == r * kColumns + i) mine = sum;
    }
  }
  const int row = first_row + (kPair ? my_row / 2 : my_row);
  const bool inside = v < kRows * kColumns && my_column < n_columns && row < args.rows;
  if (inside) mine = finish_product(args.w[kPair ? my_row % 2 : 0], group.expert, args.rows, row, mine);
  const float up = kPair ? __shfl_down_sync(~0u, mine, kColumns, 16) : 0.0f;
  if (inside && (!kPair || my_row % 2 == 0)) {
    args.y[output_row(args, group.begin + first + my_column) * args.y_stride + row] =
        kPair ? gated_unit(args.unit, mine, up) : mine;
  }
}

}  // namespace expertree::cuda
