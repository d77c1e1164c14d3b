// One format's product kernels: which are launched, and with what grid.
#pragma once

#include "cuda/kernels/product_args.cuh"

namespace expertree::cuda {

struct ProductRun {
  ProductArgs args;  // without min_rows, max_rows and n_column_tiles
  bool pair;         // gate and up, and their gated unit
  int32_t max_groups;
  int32_t max_rows;  // of a group
  int32_t dp4a_rows;
};

// Defined for quantised formats in product_<format>.cu, for float formats in product_float.cu.
template <DType kType>
cudaError_t run_product(const ProductRun& run, cudaStream_t stream);

// Weight rows (pairs of them, for pairs) that a unit of `rows` takes, over columns of `columns`.
inline dim3 product_grid(const ProductRun& run, int32_t rows_of_block, int32_t column_tiles) {
  const int32_t row_tiles = (run.args.rows + rows_of_block - 1) / rows_of_block;
  return dim3(static_cast<unsigned>(row_tiles * column_tiles), static_cast<unsigned>(run.max_groups));
}

}  // namespace expertree::cuda
