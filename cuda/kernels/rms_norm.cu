// RMS norm of rows (canonical.h, C6): a block for each row. The row is staged in shared memory, so that the 16 chains of
// the sum do not wait for device memory; rows too long for that are read where they are.
#include "cuda/kernels/row_count.cuh"
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
  bool centred;
};

// Takes its mean off a row. Every thread of the block calls; the row has been written by all.
__device__ void centre(float* x, int64_t n, float* mean) {
  if (threadIdx.x < 32) {
    const float sum = sum16(x, n);
    if (threadIdx.x == 0) *mean = __fdiv_rn(sum, static_cast<float>(n));
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += kThreads) x[i] = __fsub_rn(x[i], *mean);
  __syncthreads();
}

__device__ float normed(float x, float inverse, const float* w, const float* bias, int64_t i) {
  float value = __fmul_rn(x, inverse);
  if (w != nullptr) value = __fmul_rn(value, w[i]);
  return bias != nullptr ? __fadd_rn(value, bias[i]) : value;
}

__global__ void __launch_bounds__(kThreads) norm_rows(NormArgs args) {
  GPU_DYN_SHARED(float, stage);
  GPU_SHARED(float, inverse, 2);
  const float* x = args.x + blockIdx.x * args.x_stride;
  float* y = args.y + blockIdx.x * args.y_stride;
  if (args.staged || args.centred) {
    float* row = args.staged ? stage : y;
    for (int64_t i = threadIdx.x; i < args.n; i += kThreads) row[i] = x[i];
    __syncthreads();
    if (args.centred) centre(row, args.n, inverse + 1);
    x = row;
  }
  if (threadIdx.x < 32) {
    const float r = inverse_rms(sum_of_squares16(x, args.n), args.n, args.eps);
    if (threadIdx.x == 0) inverse[0] = r;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < args.n; i += kThreads) y[i] = normed(x[i], inverse[0], args.w, args.bias, i);
}

constexpr float kLargest = 3.402823466e38f;

struct ResidualArgs {
  ResidualNorm norm;
  int64_t n;
  bool staged;
  const int32_t* n_rows_device;
};

__global__ void __launch_bounds__(kThreads) add_and_norm(ResidualArgs args) {
  GPU_DYN_SHARED(float, stage);
  GPU_SHARED(float, inverse, 3);
  if (!is_row(blockIdx.x, args.n_rows_device)) return;
  const ResidualNorm& norm = args.norm;
  const int64_t n = args.n;
  const float* add = norm.add + blockIdx.x * n;
  float* residual = norm.residual + blockIdx.x * n;
  float* y = norm.normed == nullptr ? residual : norm.normed + blockIdx.x * n;
  float* row = args.staged ? stage : y;
  if (norm.post_norm != nullptr) {
    for (int64_t i = threadIdx.x; args.staged && i < n; i += kThreads) stage[i] = add[i];
    __syncthreads();
    if (threadIdx.x < 32) {
      const float r = inverse_rms(sum_of_squares16(args.staged ? stage : add, n), n, norm.eps);
      if (threadIdx.x == 0) inverse[0] = r;
    }
    __syncthreads();
  }
  // Each thread meets the elements that it staged itself.
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    float a = add[i];
    if (norm.post_norm != nullptr) a = __fmul_rn(__fmul_rn(a, inverse[0]), norm.post_norm[i]);
    const float sum = __fadd_rn(residual[i], __fmul_rn(a, norm.scale));
    if (norm.not_finite != nullptr && !(fabsf(sum) <= kLargest)) atomicOr(norm.not_finite, 1);
    residual[i] = sum;
    row[i] = sum;
  }
  if (norm.normed == nullptr) return;
  __syncthreads();
  if (norm.centred) centre(row, n, inverse + 2);
  if (threadIdx.x < 32) {
    const float r = inverse_rms(sum_of_squares16(row, n), n, norm.eps);
    if (threadIdx.x == 0) inverse[1] = r;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += kThreads) y[i] = normed(row[i], inverse[1], norm.w, norm.bias, i);
}

}  // namespace

cudaError_t launch_rms_norm(const float* x, int64_t x_stride, const float* w, const float* bias, float eps,
                            int64_t n_rows, int64_t n, float* y, int64_t y_stride, cudaStream_t stream, bool centred) {
  const bool staged = n <= kMostStaged;
  if (n_rows * n == 0) return cudaSuccess;
  const NormArgs args{x, x_stride, w, bias, eps, n, y, y_stride, staged, centred};
  return gpu_launch(norm_rows, dim3(static_cast<unsigned>(n_rows)), dim3(kThreads),
                    staged ? static_cast<size_t>(n) * 4 : 0, stream, args);
}

cudaError_t launch_residual_norm(const ResidualNorm& norm, int64_t n_rows, int64_t n, cudaStream_t stream,
                                 const int32_t* n_rows_device) {
  const bool staged = n <= kMostStaged;
  if (n_rows * n == 0) return cudaSuccess;
  return gpu_launch(add_and_norm, dim3(static_cast<unsigned>(n_rows)), dim3(kThreads),
                    staged ? static_cast<size_t>(n) * 4 : 0, stream, ResidualArgs{norm, n, staged, n_rows_device});
}

}  // namespace expertree::cuda
