// Rotary embedding, and rows of heads into the cells of the KV cache.
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

struct StoreArgs {
  const float* x;
  int64_t row_stride;
  int32_t head_dim;
  const int32_t* cells;
  float* dst;
  int64_t dst_head_stride;
};

__global__ void __launch_bounds__(kThreads) store_cells(StoreArgs args) {
  const int64_t head = blockIdx.x;
  const int64_t row = blockIdx.y;
  const float* x = args.x + row * args.row_stride + head * args.head_dim;
  float* y = args.dst + head * args.dst_head_stride + static_cast<int64_t>(args.cells[row]) * args.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kThreads) y[i] = x[i];
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

cudaError_t launch_store_cells(const float* x, int64_t row_stride, int32_t n_heads, int32_t head_dim,
                               const int32_t* cells, int64_t n_rows, float* dst, int64_t dst_head_stride,
                               cudaStream_t stream) {
  if (n_rows * n_heads == 0) return cudaSuccess;
  const StoreArgs args{x, row_stride, head_dim, cells, dst, dst_head_stride};
  return gpu_launch(store_cells, heads_and_rows(n_heads, n_rows), dim3(kThreads), 0, stream, args);
}

}  // namespace expertree::cuda
