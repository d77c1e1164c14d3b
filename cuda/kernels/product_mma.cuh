// Products of quantised weights with many int8 rows on tensor cores: a warp has 16 weight rows (8 of gate and 8 of up)
// and a tile of kTileColumns input rows. The integers of a block come from m16n8k32 steps; each lane runs the chains of
// canonical.h, C4, of the outputs whose sums it holds.
#pragma once

#include "cuda/kernels/mma_fragments.cuh"
#include "cuda/kernels/product_args.cuh"

namespace expertree::cuda {

constexpr int kTileColumns = 32;
constexpr int kColumnSteps = kTileColumns / 8;

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
