// RMS norm of rows (canonical.h, C6): a block for each row. The row is staged in shared memory, so that the 16 chains of
// the sum do not wait for device memory; rows too long for that are read where they are.
#include "cuda/kernels/row_kernels.h"
#include "cuda/kernels/row_sums.cuh"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostStaged = 48 * 1024 / 4 - 64;

struct NormArgs {
  const float* x;
  int64_t x_stride;
  const float* w;
  const float* bias;
  float eps;
  int64_t n;
  float* y;
  int64_t y_stride;
  bool staged;
};

__global__ void __launch_bounds__(kThreads) norm_rows(NormArgs args) {
  GPU_DYN_SHARED(float, stage);
  GPU_SHARED(float, inverse, 1);
  const float* x = args.x + blockIdx.x * args.x_stride;
  float* y = args.y + blockIdx.x * args.y_stride;
  if (args.staged) {
    for (int64_t i = threadIdx.x; i < args.n; i += kThreads) stage[i] = x[i];
    __syncthreads();
    x = stage;
  }
  if (threadIdx.x < 32) {
    const float r = inverse_rms(sum_of_squares16(x, args.n), args.n, args.eps);
    if (threadIdx.x == 0) inverse[0] = r;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < args.n; i += kThreads) {
    float value = __fmul_rn(x[i], inverse[0]);
    if (args.w != nullptr) value = __fmul_rn(value, args.w[i]);
    if (args.bias != nullptr) value = __fadd_rn(value, args.bias[i]);
    y[i] = value;
  }
}

struct ResidualArgs {
  ResidualNorm norm;
  int64_t n;
};

__global__ void __launch_bounds__(kThreads) add_and_norm(ResidualArgs args) {
  GPU_DYN_SHARED(float, stage);
  GPU_SHARED(float, inverse, 2);
  const ResidualNorm& norm = args.norm;
  const int64_t n = args.n;
  const float* add = norm.add + blockIdx.x * n;
  float* residual = norm.residual + blockIdx.x * n;
  if (norm.post_norm != nullptr) {
    for (int64_t i = threadIdx.x; i < n; i += kThreads) stage[i] = add[i];
    __syncthreads();
    if (threadIdx.x < 32) {
      const float r = inverse_rms(sum_of_squares16(stage, n), n, norm.eps);
      if (threadIdx.x == 0) inverse[0] = r;
    }
    __syncthreads();
  }
  // Each thread meets the elements that it staged itself.
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    float a = add[i];
    if (norm.post_norm != nullptr) a = __fmul_rn(__fmul_rn(a, inverse[0]), norm.post_norm[i]);
    const float sum = __fadd_rn(residual[i], __fmul_rn(a, norm.scale));
    residual[i] = sum;
    stage[i] = sum;
  }
  if (norm.normed == nullptr) return;
  __syncthreads();
  if (threadIdx.x < 32) {
    const float r = inverse_rms(sum_of_squares16(stage, n), n, norm.eps);
    if (threadIdx.x == 0) inverse[1] = r;
  }
  __syncthreads();
  float* normed = norm.normed + blockIdx.x * n;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float value = __fmul_rn(__fmul_rn(stage[i], inverse[1]), norm.w[i]);
    normed[i] = norm.bias != nullptr ? __fadd_rn(value, norm.bias[i]) : value;
  }
}

}  // namespace

cudaError_t launch_rms_norm(const float* x, int64_t x_stride, const float* w, const float* bias, float eps,
                            int64_t n_rows, int64_t n, float* y, int64_t y_stride, cudaStream_t stream) {
  if (n_rows * n == 0) return cudaSuccess;
  const bool staged = n <= kMostStaged;
  const NormArgs args{x, x_stride, w, bias, eps, n, y, y_stride, staged};
  return gpu_launch(norm_rows, dim3(static_cast<unsigned>(n_rows)), dim3(kThreads),
                    staged ? static_cast<size_t>(n) * 4 : 0, stream, args);
}

cudaError_t launch_residual_norm(const ResidualNorm& norm, int64_t n_rows, int64_t n, cudaStream_t stream) {
  if (n > kMostStaged) return cudaErrorInvalidValue;
  if (n_rows * n == 0) return cudaSuccess;
  return gpu_launch(add_and_norm, dim3(static_cast<unsigned>(n_rows)), dim3(kThreads), static_cast<size_t>(n) * 4,
                    stream, ResidualArgs{norm, n});
}

}  // namespace expertree::cuda
