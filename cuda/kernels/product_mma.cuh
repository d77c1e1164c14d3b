// Products of quantised weights with many int8 rows on tensor cores: a warp has 16 weight rows (8 of gate and 8 of up)
// and a tile of kTileColumns input rows. The integers of a block come from m16n8k32 steps; each lane runs the chains of
// canonical.h, C4, of the outputs whose sums it holds.
#pragma once

#include "cuda/kernels/product_args.cuh"
#include "cuda/kernels/weights256.cuh"

namespace expertree::cuda {

constexpr int kTileColumns = 32;
constexpr int kColumnSteps = kTileColumns / 8;

// A lane's outputs of one n8 step: [0], [1] of its lower weight row and columns 2c, 2c + 1; [2], [3] of its upper row.
struct Fragment {
  float acc[4];
  int sum[4];
  int min_sum[4];  // only of 256-element formats with minimums
};

struct FragmentWeights {
  int a[8];  // words of the lower row
  int b[8];  // of the upper row
};

__device__ __forceinline__ void mma_words(int (&d)[4], const FragmentWeights& w, const int (&x)[8], int s) {
  const int a[4] = {w.a[2 * s], w.b[2 * s], w.a[2 * s + 1], w.b[2 * s + 1]};
  const int b[2] = {x[2 * s], x[2 * s + 1]};
  gpu_mma_m16n8k32_s8(d, a, b);
}

// Word 2 s + h alone: sixteen elements.
__device__ __forceinline__ void mma_word(int (&d)[4], const FragmentWeights& w, const int (&x)[8], int word) {
  const int a[2] = {w.a[word], w.b[word]};
  gpu_mma_m16n8k16_s8(d, a, x[word]);
}

// One group of a 32-element format: up to four blocks, each a link of the chain.
template <class W>
__device__ __forceinline__ void add_group32(const Scales4 (&rows)[2], int group, int n_blocks, const FragmentWeights& w,
                                            const int (&x)[8], const float* const (&dx)[2],
                                            const int16_t* const (&sums)[2], Fragment* out) {
  const float4 d0 = __ldg(reinterpret_cast<const float4*>(dx[0]) + group);
  const float4 d1 = __ldg(reinterpret_cast<const float4*>(dx[1]) + group);
  const float scales[2][4] = {{d0.x, d0.y, d0.z, d0.w}, {d1.x, d1.y, d1.z, d1.w}};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int block = group * 4 + s;
    if (block >= n_blocks) break;
    int sum[4] = {0, 0, 0, 0};
    mma_words(sum, w, x, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = scales[i % 2][s];
      out->acc[i] = __fmaf_rn(__int2float_rn(sum[i]), __fmul_rn(rows[i / 2].d[s], scale), out->acc[i]);
      if constexpr (W::kHasMin) {
        const int x_sum = sums[i % 2][group * 8 + 2 * s] + sums[i % 2][group * 8 + 2 * s + 1];
        out->acc[i] = __fmaf_rn(__int2float_rn(x_sum), __fmul_rn(rows[i / 2].m[s], scale), out->acc[i]);
      }
    }
  }
}

// One group of a 256-element format, half a block: integers only.
template <class W>
__device__ __forceinline__ void add_group256(const typename W::Raw (&raw)[2], int group, const FragmentWeights& w,
                                             const int (&x)[8], const int16_t* const (&sums)[2], Fragment* out) {
  if constexpr (W::kFoldsScale) {
#pragma unroll
    for (int s = 0; s < 4; ++s) mma_words(out->sum, w, x, s);
  } else {
    const decltype(W::scales(raw[0], group)) scales[2] = {W::scales(raw[0], group), W::scales(raw[1], group)};
#pragma unroll
    for (int j = 0; j < 128 / W::kSub; ++j) {
      int sum[4] = {0, 0, 0, 0};
      if constexpr (W::kSub == 32) {
        mma_words(sum, w, x, j);
      } else {
        mma_word(sum, w, x, j);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) out->sum[i] += byte_of(scales[i / 2].w[j / 4], j % 4) * sum[i];
    }
  }
  if constexpr (W::kHasMin) {
    const decltype(W::mins(raw[0], group)) mins[2] = {W::mins(raw[0], group), W::mins(raw[1], group)};
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int4 packed = __ldg(reinterpret_cast<const int4*>(sums[column]) + group);
      const int pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const int low = static_cast<int16_t>(pairs[s]);
        const int high = pairs[s] >> 16;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          int* min_sum = &out->min_sum[2 * r + column];
          if constexpr (W::kSub == 32) {
            *min_sum += byte_of(mins[r].w[0], s) * (low + high);
          } else {
            *min_sum += byte_of(mins[r].w[s / 2], s % 2 * 2) * low + byte_of(mins[r].w[s / 2], s % 2 * 2 + 1) * high;
          }
        }
      }
    }
  }
}

// The links of a block of 256.
template <class W>
__device__ __forceinline__ void end_block(const float (&d)[2], const float (&dmin)[2], int block,
                                          const float* const (&dx)[2], Fragment* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float scale = dx[i % 2][block];
    out->acc[i] = __fmaf_rn(__int2float_rn(out->sum[i]), __fmul_rn(d[i / 2], scale), out->acc[i]);
    out->sum[i] = 0;
    if constexpr (W::kHasMin) {
      out->acc[i] = __fmaf_rn(-__int2float_rn(out->min_sum[i]), __fmul_rn(dmin[i / 2], scale), out->acc[i]);
      out->min_sum[i] = 0;
    }
  }
}

// A block's scales of a lane's two rows: what a group of a format needs beside its words.
template <class W>
struct RowScales {
  float d[2];
  float dmin[2];
  __device__ RowScales(const PackedRow (&rows)[2], const typename W::Raw (&raw)[2], int group) : d{}, dmin{} {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      d[r] = W::d(rows[r], raw[r], group / 2);
      if constexpr (W::kHasMin) dmin[r] = W::dmin(rows[r], raw[r], group / 2);
    }
  }
};
template <class W>
  requires(W::kBlock == 32)
struct RowScales<W> {
  Scales4 row[2];
  __device__ RowScales(const PackedRow (&rows)[2], const typename W::Raw (&)[2], int group)
      : row{W::scales(rows[0], group), W::scales(rows[1], group)} {}
};

// The grid's x: column tiles of a row tile side by side, so that they meet its weights in the cache.
template <DType kType, bool kPair>
__global__ void __launch_bounds__(kProductThreads, kProductBlocks) product_mma(ProductArgs args) {
  using W = Weights<kType>;
  GPU_SHARED(int, x_rows, kTileColumns);
  const GroupOfRows group = group_of_block(args);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int c = lane % 4;
  const int first_column = static_cast<int>(blockIdx.x) % args.n_column_tiles * kTileColumns;
  const int n_columns = min(kTileColumns, group.count - first_column);
  if (n_columns <= 0) return;
  if (threadIdx.x < kTileColumns) {
    const int column = first_column + min(static_cast<int>(threadIdx.x), n_columns - 1);
    x_rows[threadIdx.x] = static_cast<int>(input_row(args, group.begin + column));
  }
  __syncthreads();
  const int tile =
      static_cast<int>(blockIdx.x) / args.n_column_tiles * kProductWarps + static_cast<int>(threadIdx.x / 32);
  const int first_row = tile * (kPair ? 8 : 16);
  if (first_row >= args.rows) return;
  const int row_of[2] = {first_row + g, kPair ? first_row + g : first_row + 8 + g};
  const PackedRow rows[2] = {packed_row(args.w[0], group.expert, min(row_of[0], args.rows - 1)),
                             packed_row(args.w[kPair ? 1 : 0], group.expert, min(row_of[1], args.rows - 1))};
  const int n_blocks = args.k / W::kBlock;
  const int n_groups = (args.k + 127) / 128;
  Fragment out[kColumnSteps] = {};
  for (int t = 0; t < n_groups; ++t) {
    const typename W::Raw raw[2] = {W::load(rows[0], t, c), W::load(rows[1], t, c)};
    FragmentWeights w;
    W::words(raw[0], w.a);
    W::words(raw[1], w.b);
    const RowScales<W> scales(rows, raw, t);
#pragma unroll
    for (int step = 0; step < kColumnSteps; ++step) {
      if (step * 8 >= n_columns) break;
      const int64_t x_row = x_rows[step * 8 + g];
      const int4* source = reinterpret_cast<const int4*>(args.x.q.q + x_row * args.x.q.q_stride + t * 128 + c * 32);
      const int4 low = __ldg(source);
      const int4 high = __ldg(source + 1);
      const int x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      const int64_t y_rows[2] = {x_rows[step * 8 + 2 * c], x_rows[step * 8 + 2 * c + 1]};
      const float* const dx[2] = {args.x.q.d + y_rows[0] * args.x.q.d_stride,
                                  args.x.q.d + y_rows[1] * args.x.q.d_stride};
      const int16_t* const sums[2] = {args.x.q.sums16 + y_rows[0] * args.x.q.sums_stride,
                                      args.x.q.sums16 + y_rows[1] * args.x.q.sums_stride};
      if constexpr (W::kBlock == 32) {
        add_group32<W>(scales.row, t, n_blocks, w, x, dx, sums, &out[step]);
      } else {
        add_group256<W>(raw, t, w, x, sums, &out[step]);
        if (t % 2 == 1) end_block<W>(scales.d, scales.dmin, t / 2, dx, &out[step]);
      }
    }
  }
#pragma unroll
  for (int step = 0; step < kColumnSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = step * 8 + 2 * c + i % 2;
      const int row = row_of[i / 2];
      if (column >= n_columns || row >= args.rows) continue;
      float value = finish_product(args.w[kPair ? i / 2 : 0], group.expert, args.rows, row, out[step].acc[i]);
      if constexpr (kPair) {
        if (i >= 2) continue;  // of up: comes with its gate
        const float up = finish_product(args.w[1], group.expert, args.rows, row, out[step].acc[i + 2]);
        value = gated_unit(args.unit, value, up);
      }
      const int64_t y_row = output_row(args, group.begin + first_column + column);
      args.y[y_row * args.y_stride + row] = value;
    }
  }
}

}  // namespace expertree::cuda
