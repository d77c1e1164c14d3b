// Products of quantised weights with a few int8 rows: a warp has kRows weight rows and up to kColumns input rows. Its
// lanes take 32 elements each, 1024 at a time, and leave one integer per block; then a lane for each output runs the
// chain of canonical.h, C4, over the blocks.
#pragma once

#include "cuda/kernels/product_args.cuh"
#include "cuda/kernels/weights256.cuh"

namespace expertree::cuda {

// Sums over the four lanes of a quad: of p[s], to lane s.
__device__ __forceinline__ int scatter_sums(const int (&p)[4], int c) {
  const bool upper = (c & 2) != 0;
  int first = upper ? p[2] : p[0];
  int second = upper ? p[3] : p[1];
  first += __shfl_xor_sync(~0u, upper ? p[0] : p[2], 2);
  second += __shfl_xor_sync(~0u, upper ? p[1] : p[3], 2);
  const bool odd = (c & 1) != 0;
  return (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
}

constexpr int kOnes = 0x01010101;

// S of a block of 256, a lane's part.
template <class W>
__device__ __forceinline__ int scaled_dot(const typename W::Raw& raw, int group, const int (&w)[8], const int (&x)[8]) {
  int sum = 0;
  if constexpr (W::kFoldsScale) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __dp4a(w[i], x[i], sum);
  } else {
    const auto scales = W::scales(raw, group);
#pragma unroll
    for (int i = 0; i < 8; i += W::kSub / 16) {
      int dot = __dp4a(w[i], x[i], 0);
      if constexpr (W::kSub == 32) dot = __dp4a(w[i + 1], x[i + 1], dot);
      const int j = i * 16 / W::kSub;
      sum += byte_of(scales.w[j / 4], j % 4) * dot;
    }
  }
  return sum;
}

// M of a block of 256, a lane's part: minimums times activations.
template <class W>
__device__ __forceinline__ int min_dot(const typename W::Raw& raw, int group, const int (&x)[8]) {
  const auto mins = W::mins(raw, group);
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int j = i * 16 / W::kSub;
    sum = __dp4a(byte_of(mins.w[j / 4], j % 4) * kOnes, x[i], sum);
  }
  return sum;
}

template <class W>
constexpr int terms_of_pass() {
  return (W::kBlock == 32 ? 32 : 4) * (W::kHasMin ? 2 : 1);
}

// Sums of an input row's blocks of 32, block s of the group to lane s.
__device__ __forceinline__ int block_sums(const int (&x)[8], int c) {
  int p[4];
#pragma unroll
  for (int s = 0; s < 4; ++s) p[s] = __dp4a(kOnes, x[2 * s + 1], __dp4a(kOnes, x[2 * s], 0));
  return scatter_sums(p, c);
}

// The lanes' integers of one weight row and one input row, as terms (a, b) of the chain acc = fma(a, b, acc).
template <class W>
__device__ __forceinline__ void put_terms(const PackedRow& row, const typename W::Raw& raw, int group,
                                          const int (&w)[8], const int (&x)[8], int x_sum, const float* dx, int lane,
                                          float2* terms) {
  const int c = lane % 4;
  if constexpr (W::kBlock == 32) {
    int p[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) p[s] = __dp4a(w[2 * s + 1], x[2 * s + 1], __dp4a(w[2 * s], x[2 * s], 0));
    const int dot = scatter_sums(p, c);
    const int block = group * 4 + c;
    const float dx_block = dx[block];
    if constexpr (W::kHasMin) {
      terms[2 * lane] = make_float2(__int2float_rn(dot), __fmul_rn(W::d(row, block), dx_block));
      terms[2 * lane + 1] = make_float2(__int2float_rn(x_sum), __fmul_rn(W::m(row, block), dx_block));
    } else {
      terms[lane] = make_float2(__int2float_rn(dot), __fmul_rn(W::d(row, block), dx_block));
    }
  } else {
    const int block = group / 2;
    const int dot = scaled_dot<W>(raw, group, w, x);
    if constexpr (W::kHasMin) {
      // Four of the block's eight lanes end with S, four with M.
      const int mins = min_dot<W>(raw, group, x);
      const bool has_min = (lane & 4) != 0;
      int sum = has_min ? mins : dot;
      sum += __shfl_xor_sync(~0u, has_min ? dot : mins, 4);
      sum = gpu_group_sum<4>(sum);
      if (c == 0) {
        const float a = __int2float_rn(sum);
        const float b = has_min ? W::dmin(row, raw, block) : W::d(row, raw, block);
        terms[lane / 4] = make_float2(has_min ? -a : a, __fmul_rn(b, dx[block]));
      }
    } else {
      const int sum = gpu_group_sum<8>(dot);
      if (lane % 8 == 0)
        terms[lane / 8] = make_float2(__int2float_rn(sum), __fmul_rn(W::d(row, raw, block), dx[block]));
    }
  }
}

constexpr int dp4a_rows_of_warp(int columns) { return columns > 4 ? 2 : 4; }

// kPair: rows are, in turn, of gate and of up, and what is put out is the gated unit of both.
template <DType kType, int kColumns, bool kPair>
__global__ void __launch_bounds__(kProductThreads, kColumns == 1 ? 2 * kProductBlocks : kProductBlocks)
    product_dp4a(ProductArgs args) {
  using W = Weights<kType>;
  constexpr int kRows = dp4a_rows_of_warp(kColumns);
  constexpr int kOutputs = kRows * kColumns;
  constexpr int kTerms = terms_of_pass<W>();
  constexpr int kPitch = kTerms + 1;  // odd: lanes of different outputs meet different banks
  static_assert(kOutputs <= 32);
  GPU_SHARED(float2, all_terms, kProductWarps * kOutputs * kPitch);
  const GroupOfRows group = group_of_block(args);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int tile = static_cast<int>(blockIdx.x) / args.n_column_tiles;
  const int first = static_cast<int>(blockIdx.x) % args.n_column_tiles * kColumns;
  const int n_columns = min(kColumns, group.count - first);
  const int first_row = (tile * kProductWarps + warp) * (kPair ? kRows / 2 : kRows);
  if (first_row >= args.rows || n_columns <= 0) return;
  float2* terms = all_terms + warp * kOutputs * kPitch;
  PackedRow rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = min(first_row + (kPair ? r / 2 : r), args.rows - 1);
    rows[r] = packed_row(args.w[kPair ? r % 2 : 0], group.expert, row);
  }
  const int n_blocks = args.k / W::kBlock;
  const int n_groups = (args.k + 127) / 128;
  const int my_row = lane / kColumns;  // of this lane's output
  const int my_column = lane % kColumns;
  const int8_t* q[kColumns];
  const float* d[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t x_row = input_row(args, group.begin + first + min(i, n_columns - 1));
    q[i] = args.x.q.q + x_row * args.x.q.q_stride;
    d[i] = args.x.q.d + x_row * args.x.q.d_stride;
  }
  float acc = 0.0f;
  for (int pass = 0; pass * 8 < n_groups; ++pass) {
    const int t = min(pass * 8 + lane / 4, n_groups - 1);
    int x[kColumns][8];
    int x_sum[kColumns] = {};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (i >= n_columns) break;
      const int4* source = reinterpret_cast<const int4*>(q[i] + t * 128 + lane % 4 * 32);
      const int4 a = __ldg(source);
      const int4 b = __ldg(source + 1);
      x[i][0] = a.x, x[i][1] = a.y, x[i][2] = a.z, x[i][3] = a.w;
      x[i][4] = b.x, x[i][5] = b.y, x[i][6] = b.z, x[i][7] = b.w;
      if constexpr (W::kBlock == 32 && W::kHasMin) x_sum[i] = block_sums(x[i], lane % 4);
    }
    typename W::Raw raw[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) raw[r] = W::load(rows[r], t, lane % 4);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int w[8];
      W::words(raw[r], w);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i >= n_columns) break;
        put_terms<W>(rows[r], raw[r], t, w, x[i], x_sum[i], d[i], lane, terms + (r * kColumns + i) * kPitch);
      }
    }
    __syncwarp();
    if (lane < kOutputs && my_column < n_columns) {
      constexpr int kPerBlock = W::kHasMin ? 2 : 1;
      const int n_terms = min(kTerms, n_blocks * kPerBlock - pass * kTerms);
      const float2* mine = terms + lane * kPitch;
      for (int i = 0; i < n_terms; ++i) acc = __fmaf_rn(mine[i].x, mine[i].y, acc);
    }
    __syncwarp();
  }
  const int row = first_row + (kPair ? my_row / 2 : my_row);
  const bool inside = lane < kOutputs && my_column < n_columns && row < args.rows;
  if (inside) acc = finish_product(args.w[kPair ? my_row % 2 : 0], group.expert, args.rows, row, acc);
  const float up = kPair ? __shfl_down_sync(~0u, acc, kColumns) : 0.0f;
  if (inside && (!kPair || my_row % 2 == 0)) {
    args.y[output_row(args, group.begin + first + my_column) * args.y_stride + row] =
        kPair ? gated_unit(args.unit, acc, up) : acc;
  }
}

}  // namespace expertree::cuda
