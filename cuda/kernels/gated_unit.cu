// Gated units, element by element (canonical.h, C12), where the products before them could not be fused.
#include "cuda/kernels/product_args.cuh"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    gate_elements(Unit unit, const float* gate, const float* up, int64_t n, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) y[i] = gated_unit(unit, gate[i], up[i]);
}

}  // namespace

cudaError_t launch_gated_unit(Unit unit, const float* gate, const float* up, int64_t n, float* y, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((n + kThreads - 1) / kThreads));
  return gpu_launch(gate_elements, grid, dim3(kThreads), 0, stream, unit, gate, up, n, y);
}

}  // namespace expertree::cuda
