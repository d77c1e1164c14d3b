// What works element by element: weighted inputs, sigmoid gates, scale and soft cap of logits.
#include "cpp/kernels/canonical_math.h"
#include "cuda/gpu/gpu.h"
#include "cuda/kernels/row_kernels.h"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline int64_t element_of_thread() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    weigh_inputs(const float* x, const float* weights, int32_t n_used, int64_t n, int64_t n_all, float* y) {
  const int64_t i = element_of_thread();
  if (i < n_all) y[i] = __fmul_rn(x[i / n / n_used * n + i % n], weights[i / n]);
}

__global__ void __launch_bounds__(kThreads)
    gate_with_sigmoid(float* y, const float* gate, bool gate_per_row, int64_t n, int64_t n_all) {
  const int64_t i = element_of_thread();
  if (i >= n_all) return;
  y[i] = __fmul_rn(y[i], canonical_gate(1.0f, gate[gate_per_row ? i / n : i]));
}

__global__ void __launch_bounds__(kThreads) scale_and_cap(float* x, int64_t n, float scale, float softcap) {
  const int64_t i = element_of_thread();
  if (i >= n) return;
  const float scaled = __fmul_rn(x[i], scale);
  x[i] = softcap != 0.0f ? canonical_softcap(scaled, softcap) : scaled;
}

// To +- limit; NaN stays.
__global__ void __launch_bounds__(kThreads) clamp_elements(float* x, int64_t n, float limit) {
  const int64_t i = element_of_thread();
  if (i >= n) return;
  const float value = x[i];
  x[i] = value > limit ? limit : value < -limit ? -limit : value;
}

dim3 grid_for(int64_t n) { return dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)); }

}  // namespace

cudaError_t launch_weigh_inputs(const float* x, const float* weights, int64_t n_rows, int32_t n_used, int64_t n,
                                float* y, cudaStream_t stream) {
  const int64_t n_all = n_rows * n_used * n;
  if (n_all == 0) return cudaSuccess;
  return gpu_launch(weigh_inputs, grid_for(n_all), dim3(kThreads), 0, stream, x, weights, n_used, n, n_all, y);
}

cudaError_t launch_sigmoid_gate(float* y, const float* gate, bool gate_per_row, int64_t n_rows, int64_t n,
                                cudaStream_t stream) {
  if (n_rows * n == 0) return cudaSuccess;
  return gpu_launch(gate_with_sigmoid, grid_for(n_rows * n), dim3(kThreads), 0, stream, y, gate, gate_per_row, n,
                    n_rows * n);
}

cudaError_t launch_scale_softcap(float* x, int64_t n, float scale, float softcap, cudaStream_t stream) {
  if (n == 0 || (scale == 1.0f && softcap == 0.0f)) return cudaSuccess;
  return gpu_launch(scale_and_cap, grid_for(n), dim3(kThreads), 0, stream, x, n, scale, softcap);
}

cudaError_t launch_clamp(float* x, int64_t n, float limit, cudaStream_t stream) {
  if (n == 0 || limit == 0.0f) return cudaSuccess;
  return gpu_launch(clamp_elements, grid_for(n), dim3(kThreads), 0, stream, x, n, limit);
}

}  // namespace expertree::cuda
