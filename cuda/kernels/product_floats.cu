// Launches of products with float weights.
#include <limits>

#include "cuda/kernels/product_float.cuh"
#include "cuda/kernels/product_run.h"

namespace expertree::cuda {
namespace {

template <DType kType, int kColumns>
cudaError_t run_columns(const ProductRun& run, cudaStream_t stream) {
  constexpr int kRows = float_rows_of_half_warp(kColumns);
  ProductArgs args = run.args;
  args.min_rows = 1;
  args.max_rows = std::numeric_limits<int32_t>::max();
  args.n_column_tiles = (run.max_rows + kColumns - 1) / kColumns;
  const dim3 grid = product_grid(run, 2 * kProductWarps * (run.pair ? kRows / 2 : kRows), args.n_column_tiles);
  return gpu_launch(run.pair ? product_float<kType, kColumns, true> : product_float<kType, kColumns, false>, grid,
                    dim3(kProductThreads), 0, stream, args);
}

}  // namespace

template <DType kType>
cudaError_t run_product(const ProductRun& run, cudaStream_t stream) {
  if (run.max_groups == 0 || run.max_rows == 0 || run.args.rows == 0) return cudaSuccess;
  return run.max_rows == 1 ? run_columns<kType, 1>(run, stream) : run_columns<kType, 8>(run, stream);
}

template cudaError_t run_product<DType::kF32>(const ProductRun& run, cudaStream_t stream);
template cudaError_t run_product<DType::kF16>(const ProductRun& run, cudaStream_t stream);
template cudaError_t run_product<DType::kBF16>(const ProductRun& run, cudaStream_t stream);

}  // namespace expertree::cuda
