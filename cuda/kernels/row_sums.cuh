// Canonical sums of one row by a warp (canonical.h, C1): virtual lane v is lane v and lane 16 + v, and every lane gets the
// result. All 32 lanes call.
#pragma once

#include "cuda/gpu/gpu.h"

namespace expertree::cuda {

__device__ inline float sum_of_squares16(const float* x, int64_t n) {
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t i = threadIdx.x % 16; i < n; i += 16) sum = __fmaf_rn(x[i], x[i], sum);
  return gpu_group_sum<16>(sum);
}

__device__ inline float sum16(const float* x, int64_t n) {
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t i = threadIdx.x % 16; i < n; i += 16) sum = __fadd_rn(sum, x[i]);
  return gpu_group_sum<16>(sum);
}

// C6: what elements are multiplied with.
__device__ inline float inverse_rms(float sum_of_squares, int64_t n, float eps) {
  const float mean = __fdiv_rn(sum_of_squares, static_cast<float>(n));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

}  // namespace expertree::cuda
