// Scores of one tile of positions for the query heads of one KV head: half a warp has four positions and four heads at a
// time, a lane for each virtual lane of the dot products.
#include "cpp/kernels/canonical_math.h"
#include "cuda/kernels/attention_scratch.cuh"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPositions = 4;  // of half a warp: eight of them have a tile
constexpr int kHeads = 4;
static_assert(kPositions * kHeads == 16 && kThreads / 16 * kPositions == kTile);

template <DType kType>
__global__ void __launch_bounds__(kThreads) score_tile(AttentionArgs args) {
  const TreeAttention& a = args.a;
  const int64_t row = args.first_row + blockIdx.z;
  const int kv_head = static_cast<int>(blockIdx.y);
  if (!is_row(row, args.n_rows_device)) return;
  const PathOfRow path(a, row);
  const int begin = static_cast<int>(blockIdx.x) * kTile;
  if (begin >= path.n) return;
  const int v = static_cast<int>(threadIdx.x % 16);
  const int at = begin + static_cast<int>(threadIdx.x / 16) * kPositions;
  int64_t keys[kPositions];  // where they begin
#pragma unroll
  for (int j = 0; j < kPositions; ++j) {
    keys[j] = cell_begin(a.k, kv_head, path.cell(min(at + j, path.n - 1)));
  }
  const int group = a.n_heads / a.n_kv_heads;
  for (int first = 0; first < group; first += kHeads) {
    const int n_heads = min(kHeads, group - first);
    const float* q = a.q + (row * a.n_heads + kv_head * group + first) * a.head_dim_k;
    float dot[kHeads][kPositions] = {};
    for (int i = v; i < a.head_dim_k; i += 16) {
      float key[kPositions];
#pragma unroll
      for (int j = 0; j < kPositions; ++j) key[j] = cell_element<kType>(a.k, keys[j] + i);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float query = __ldg(q + min(h, n_heads - 1) * a.head_dim_k + i);
#pragma unroll
        for (int j = 0; j < kPositions; ++j) dot[h][j] = __fmaf_rn(query, key[j], dot[h][j]);
      }
    }
    // Each lane ends one score.
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeads * kPositions; ++i) {
      const float sum = gpu_group_sum<16>(dot[i / kPositions][i % kPositions]);
      if (v == i) score = __fmul_rn(sum, a.scale);
    }
    const int h = v / kPositions;
    const int i = at + v % kPositions;
    if (h >= n_heads || i >= path.n) continue;
    if (a.softcap > 0.0f) score = canonical_softcap(score, a.softcap);
    const int64_t head = args.head_of_row(blockIdx.z, kv_head * group + first + h);
    args.scores[head * args.n_tiles * kTile + i] = score;
  }
}

}  // namespace

cudaError_t launch_attention_scores(const AttentionArgs& args, int64_t n_rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.n_tiles), static_cast<unsigned>(args.a.n_kv_heads),
                  static_cast<unsigned>(n_rows));
  const DType dtype = args.a.k.dtype;
  const auto kernel = dtype == DType::kF32   ? score_tile<DType::kF32>
                      : dtype == DType::kF16 ? score_tile<DType::kF16>
                                             : score_tile<DType::kQ8_0>;
  return gpu_launch(kernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace expertree::cuda
