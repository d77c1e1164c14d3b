// Launches of a quantised format's two kernels: dp4a for groups of few rows, mma for those of more.
#pragma once

#include <algorithm>
#include <limits>

#include "cuda/kernels/product_dp4a.cuh"
#include "cuda/kernels/product_mma.cuh"
#include "cuda/kernels/product_run.h"

namespace expertree::cuda {

template <DType kType, int kColumns>
cudaError_t run_dp4a(const ProductRun& run, cudaStream_t stream) {
  constexpr int kRows = dp4a_rows_of_warp(kColumns);
  ProductArgs args = run.args;
  args.min_rows = 1;
  args.max_rows = run.dp4a_rows;
  args.n_column_tiles = (std::min(run.max_rows, run.dp4a_rows) + kColumns - 1) / kColumns;
  const dim3 grid = product_grid(run, kProductWarps * (run.pair ? kRows / 2 : kRows), args.n_column_tiles);
  return gpu_launch(run.pair ? product_dp4a<kType, kColumns, true> : product_dp4a<kType, kColumns, false>, grid,
                    dim3(kProductThreads), 0, stream, args);
}

template <DType kType>
cudaError_t run_mma(const ProductRun& run, cudaStream_t stream) {
  ProductArgs args = run.args;
  args.min_rows = run.dp4a_rows + 1;
  args.max_rows = std::numeric_limits<int32_t>::max();
  args.n_column_tiles = (run.max_rows + kTileColumns - 1) / kTileColumns;
  const dim3 grid = product_grid(run, kProductWarps * (run.pair ? 8 : 16), args.n_column_tiles);
  return gpu_launch(run.pair ? product_mma<kType, true> : product_mma<kType, false>, grid, dim3(kProductThreads), 0,
                    stream, args);
}

template <DType kType>
cudaError_t run_product(const ProductRun& run, cudaStream_t stream) {
  if (run.max_groups == 0 || run.max_rows == 0 || run.args.rows == 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (run.dp4a_rows > 0) {
    error = run.max_rows == 1 ? run_dp4a<kType, 1>(run, stream) : run_dp4a<kType, 8>(run, stream);
  }
  if (error == cudaSuccess && run.max_rows > run.dp4a_rows) error = run_mma<kType>(run, stream);
  return error;
}

}  // namespace expertree::cuda
