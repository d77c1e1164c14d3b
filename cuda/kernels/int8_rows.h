// Rows of int8 activations in device memory (canonical.h, C3), in the order of packed weights (packed_layout.h): of each
// group of 128 elements, element 32 s + 16 h + 4 c + i lies at byte 32 c + 8 s + 4 h + i. Rows are filled up to whole
// groups with zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace expertree::cuda {

struct Int8Rows {
  int8_t* q;  // [rows][q_stride], 16-byte aligned
  float* d;  // [rows][d_stride], one for each block; 16-byte aligned
  int16_t* sums16;  // [rows][sums_stride]: sum of 16 consecutive elements, in element order; 16-byte aligned
  int64_t q_stride;  // n rounded up to 128
  int64_t d_stride;  // blocks rounded up to 4
  int64_t sums_stride;  // q_stride / 16
};

// Strides for rows of n elements in blocks of 32 or 256, pointers null.
Int8Rows int8_rows_shape(int64_t n, int64_t block);
// What n_rows rows take: [q][d][sums16], each from a multiple of 16 bytes on.
int64_t int8_rows_bytes(int64_t n_rows, int64_t n, int64_t block);
// The same with pointers into `memory`, 16-byte aligned.
Int8Rows int8_rows_at(void* memory, int64_t n_rows, int64_t n, int64_t block);

// x: float [n_rows][n], row stride x_stride; n is a multiple of block. Padding is written, too.
cudaError_t launch_quantize_rows(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, int64_t block,
                                 const Int8Rows& out, cudaStream_t stream);

}  // namespace expertree::cuda
