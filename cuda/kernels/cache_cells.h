// Keys or values of a layer in device memory (canonical.h, C14), and launchers that put them there.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cpp/tensor/dtype.h"

namespace expertree::cuda {

// A plane of cells for each KV head. Strides count elements; a cell's begin on 16 bytes, and have whole blocks.
struct CacheCells {
  DType dtype;          // F32, F16 or Q8_0
  void* elements;       // floats, the bits of halves, or int8
  uint16_t* scales;     // Q8_0: bits of halves, one for 32 elements, in the same order; else null
  int64_t head_stride;  // from a head's plane to the next
  int64_t cell_stride;  // from a cell to the next
};

// Elements of a cell and head of head_dim elements, with what fills them up; 0: no cells of this format.
int64_t cell_stride(DType dtype, int64_t head_dim);
// Bytes of an element, scales apart.
int64_t element_bytes(DType dtype);

// Rounds rows of n_heads heads, back to back in x, into cells[r]. n_rows_device: as in row_kernels.h.
cudaError_t launch_store_cells(const float* x, int64_t row_stride, int32_t n_heads, int32_t head_dim,
                               const int32_t* cells, int64_t n_rows, const CacheCells& to, cudaStream_t stream,
                               const int32_t* n_rows_device = nullptr);

// Rows that are rounded already, as cpp/model/cache_types.h has them, [n_rows][n_heads][row_bytes], into cells from
// `cell` on. 2-byte aligned.
cudaError_t launch_copy_cells(const void* rows, int64_t row_bytes, int32_t n_heads, int64_t cell, int64_t n_rows,
                              const CacheCells& to, cudaStream_t stream);

}  // namespace expertree::cuda
