// How kernels read elements of cells: decoded exactly (canonical.h, C14).
#pragma once

#include "cuda/gpu/gpu.h"
#include "cuda/kernels/cache_cells.h"

namespace expertree::cuda {

__device__ __forceinline__ float half_of_bits(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

template <DType>
struct CellFormat;
template <>
struct CellFormat<DType::kF32> {
  using Element = float;
  __device__ static float decode(float x) { return x; }
};
template <>
struct CellFormat<DType::kF16> {
  using Element = uint16_t;
  __device__ static float decode(uint16_t x) { return half_of_bits(x); }
};
template <>
struct CellFormat<DType::kQ8_0> {
  using Element = int8_t;
  __device__ static float decode(int8_t x) { return static_cast<float>(x); }  // times the block's scale
};

// Where a cell's elements begin.
__device__ __forceinline__ int64_t cell_begin(const CacheCells& cells, int64_t head, int64_t cell) {
  return head * cells.head_stride + cell * cells.cell_stride;
}

// Of the block that element `at` of all belongs to.
__device__ __forceinline__ float block_scale(const CacheCells& cells, int64_t at) {
  return half_of_bits(__ldg(cells.scales + at / 32));
}

template <DType kType>
__device__ __forceinline__ float cell_element(const CacheCells& cells, int64_t at) {
  using Element = typename CellFormat<kType>::Element;
  const float x = CellFormat<kType>::decode(__ldg(static_cast<const Element*>(cells.elements) + at));
  return kType == DType::kQ8_0 ? __fmul_rn(block_scale(cells, at), x) : x;
}

}  // namespace expertree::cuda
