// Rotary embedding.
#include "cuda/gpu/gpu.h"
#include "cuda/kernels/row_kernels.h"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void __launch_bounds__(kThreads) turn_heads(Rope args) {
  const int64_t row = blockIdx.y;
  float* head = args.x + row * args.row_stride + blockIdx.x * args.head_stride;
  const float scale = args.scale != nullptr ? args.scale[row] : 1.0f;
  const int first = args.consecutive ? 2 : 1;              // from pair to pair
  const int second = args.consecutive ? 1 : args.n_pairs;  // from a pair's first element to its second
  for (int i = static_cast<int>(threadIdx.x); i < args.n_pairs; i += kThreads) {
    const float c = args.cos[row * args.n_pairs + i];
    const float s = args.sin[row * args.n_pairs + i];
    float* x = head + i * first;
    const float x0 = x[0];
    const float x1 = x[second];
    x[0] = __fmul_rn(__fsub_rn(__fmul_rn(x0, c), __fmul_rn(x1, s)), scale);
    x[second] = __fmul_rn(__fadd_rn(__fmul_rn(x1, c), __fmul_rn(x0, s)), scale);
  }
  if (args.scale == nullptr) return;
  for (int i = 2 * args.n_pairs + static_cast<int>(threadIdx.x); i < args.head_dim; i += kThreads) {
    head[i] = __fmul_rn(head[i], scale);
  }
}

dim3 heads_and_rows(int32_t n_heads, int64_t n_rows) {
  return dim3(static_cast<unsigned>(n_heads), static_cast<unsigned>(n_rows));
}

}  // namespace

cudaError_t launch_rope(const Rope& args, int64_t n_rows, cudaStream_t stream) {
  if (2 * args.n_pairs > args.head_dim) return cudaErrorInvalidValue;
  if (n_rows * args.n_heads == 0 || (args.n_pairs == 0 && args.scale == nullptr)) return cudaSuccess;
  return gpu_launch(turn_heads, heads_and_rows(args.n_heads, n_rows), dim3(kThreads), 0, stream, args);
}

}  // namespace expertree::cuda
