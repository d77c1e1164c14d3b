// Views of weights in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/tensor/dtype.h"

namespace expertree {

// Kernels may load a whole vector at the end of the last row.
constexpr int64_t kOverreadBytes = 128;
constexpr int64_t kOverreadFloats = kOverreadBytes / static_cast<int64_t>(sizeof(float));

// Rows of k elements in the file's own block layout.
struct WeightMatrix {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t row_bytes = 0;
  float scale = 1.0f;  // multiplies every output of a product, before the bias

  bool present() const { return data != nullptr; }
  // The n rows from `first` on.
  WeightMatrix rows_from(int64_t first, int64_t n) const {
    return {dtype, data + first * row_bytes, n, k, row_bytes, scale};
  }
};

}  // namespace expertree
