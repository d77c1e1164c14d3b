// The rows that there are of those that a grid is made for.
#pragma once

#include <cstdint>

#include "cuda/gpu/gpu.h"

namespace expertree::cuda {

// The same for all threads of a row.
__device__ inline bool is_row(int64_t row, const int32_t* n_rows_device) {
  return n_rows_device == nullptr || row < *n_rows_device;
}

}  // namespace expertree::cuda
