// A row's expert outputs, summed in rank order (canonical.h, C9), and what ran beside them.
#include "cuda/gpu/gpu.h"
#include "cuda/kernels/expert_kernels.h"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 128;

struct SumArgs {
  const float* out;
  const float* weights;
  int32_t n_used;
  int64_t n;
  const float* beside;
  float scale;
  float* y;
};

__global__ void __launch_bounds__(kThreads) sum_ranks(SumArgs args) {
  const int64_t row = blockIdx.y;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.n) return;
  float sum = 0.0f;
  for (int rank = 0; rank < args.n_used; ++rank) {
    const int64_t slot = row * args.n_used + rank;
    sum = __fmaf_rn(args.weights != nullptr ? args.weights[slot] : 1.0f, args.out[slot * args.n + i], sum);
  }
  sum = __fadd_rn(sum, args.beside != nullptr ? args.beside[row * args.n + i] : 0.0f);
  args.y[row * args.n + i] = __fmul_rn(sum, args.scale);
}

}  // namespace

cudaError_t launch_sum_experts(const float* out, const float* weights, int32_t n_rows, int32_t n_used, int64_t n,
                               const float* beside, float scale, float* y, cudaStream_t stream) {
  if (n_rows * n == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((n + kThreads - 1) / kThreads), static_cast<unsigned>(n_rows));
  const SumArgs args{out, weights, n_used, n, beside, scale, y};
  return gpu_launch(sum_ranks, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace expertree::cuda
