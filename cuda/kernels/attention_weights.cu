// From scores to the weights of values, of one query head: a warp for a tile. The running maximum is a prefix maximum, so
// all tiles' exponentials are taken at once; only the sum l is a chain over the tiles.
#include "cpp/kernels/canonical_math.h"
#include "cuda/kernels/attention_scratch.cuh"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// In place: the largest of value[0 .. i]. Every thread of the block calls.
__device__ void prefix_max(float* value, float* other, int n) {
  for (int step = 1; step < n; step *= 2) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
      other[i] = i >= step ? fmaxf(value[i], value[i - step]) : value[i];
    }
    __syncthreads();
    float* swapped = value;
    value = other;
    other = swapped;
  }
}

// How often prefix_max swaps its two arrays.
__device__ bool ends_swapped(int n) {
  bool swapped = false;
  for (int step = 1; step < n; step *= 2) swapped = !swapped;
  return swapped;
}

__global__ void __launch_bounds__(kThreads) weigh_tiles(AttentionArgs args) {
  GPU_DYN_SHARED(float, shared);
  const TreeAttention& a = args.a;
  const int query_head = static_cast<int>(blockIdx.x);
  const int64_t row = args.first_row + blockIdx.y;
  if (!is_row(row, args.n_rows_device)) return;
  const PathOfRow path(a, row);
  const int n_tiles = (path.n + kTile - 1) / kTile;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int64_t head = args.head_of_row(blockIdx.y, query_head);
  float* scores = args.scores + head * args.n_tiles * kTile;
  float* decay = args.decay + head * args.n_tiles;
  // Two arrays [n_tiles + 1]: maximum before each tile, and after it.
  float* most = args.maxima == nullptr ? shared : args.maxima + head * 2 * (args.n_tiles + 1);
  float* other = most + args.n_tiles + 1;
  const float none = __int_as_float(static_cast<int>(0xff800000u));
  if (threadIdx.x == 0) most[0] = a.sinks != nullptr ? a.sinks[query_head] : none;
  for (int t = warp; t < n_tiles; t += kWarps) {
    const int i = t * kTile + lane;
    const float tile_most = gpu_warp_max(i < path.n ? scores[i] : none);
    if (lane == 0) most[t + 1] = tile_most;
  }
  __syncthreads();
  prefix_max(most, other, n_tiles + 1);
  if (ends_swapped(n_tiles + 1)) {
    float* swapped = most;
    most = other;
    other = swapped;
  }
  float* sums = other;  // free now
  for (int t = warp; t < n_tiles; t += kWarps) {
    const int i = t * kTile + lane;
    const float weight = i < path.n ? canonical_exp(__fsub_rn(scores[i], most[t + 1])) : 0.0f;
    if (i < path.n) scores[i] = weight;
    // Positions lane and 16 + lane share a virtual lane.
    const float upper = __shfl_down_sync(~0u, weight, 16);
    const float sum = gpu_group_sum<16>(i + 16 < path.n ? __fadd_rn(weight, upper) : weight);
    if (lane != 0) continue;
    sums[t] = sum;
    decay[t] = canonical_exp(__fsub_rn(most[t], most[t + 1]));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  float l = a.sinks != nullptr ? 1.0f : 0.0f;
#pragma unroll 4
  for (int t = 0; t < n_tiles; ++t) l = __fmaf_rn(l, decay[t], sums[t]);
  args.inverse[head] = __fdiv_rn(1.0f, l);
}

}  // namespace

cudaError_t launch_attention_weights(const AttentionArgs& args, int64_t n_rows, cudaStream_t stream) {
  const size_t shared_bytes = args.maxima == nullptr ? static_cast<size_t>(2 * (args.n_tiles + 1)) * sizeof(float) : 0;
  const dim3 grid(static_cast<unsigned>(args.a.n_heads), static_cast<unsigned>(n_rows));
  return gpu_launch(weigh_tiles, grid, dim3(kThreads), shared_bytes, stream, args);
}

}  // namespace expertree::cuda
