// Weighted sums of values: a chain over the positions for each element of each head's output. A block has 32 elements of
// the value heads and eight query heads, and copies coming tiles to shared memory while it adds one.
#include "cuda/kernels/attention_scratch.cuh"

namespace expertree::cuda {
namespace {

constexpr int kHeads = 8;  // a warp each
constexpr int kElements = 32;  // a lane each
constexpr int kThreads = kHeads * kElements;
constexpr int kStages = 4;

template <DType kType>
struct TileStage {
  using Element = typename CellFormat<kType>::Element;
  static constexpr int kPiece = 16 / sizeof(Element);  // elements that are copied at a time

  alignas(16) Element values[kTile][kElements];
  float weights[kHeads][kTile];
  float scales[kTile];  // of Q8_0: kElements are one block
};

template <DType kType>
__global__ void __launch_bounds__(kThreads) sum_values(AttentionArgs args) {
  using Stage = TileStage<kType>;
  GPU_SHARED(Stage, stages, kStages);
  const TreeAttention& a = args.a;
  const int group = a.n_heads / a.n_kv_heads;
  const int head_tiles = (group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / head_tiles;
  const int first_head = static_cast<int>(blockIdx.y) % head_tiles * kHeads;  // of the group
  const int first_element = static_cast<int>(blockIdx.x) * kElements;
  const int64_t row = args.first_row + blockIdx.z;
  if (!is_row(row, args.n_rows_device)) return;
  const PathOfRow path(a, row);
  const int n_tiles = (path.n + kTile - 1) / kTile;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int head = kv_head * group + min(first_head + warp, group - 1);
  const int64_t head_of_row = args.head_of_row(blockIdx.z, head);
  const float* decay = args.decay + head_of_row * args.n_tiles;
  // What this thread copies of each tile: 16 bytes of values where there are as many, and of weights the first eight
  // lanes of each warp. Scales are read by the first warp, a tile ahead.
  constexpr int kPieces = kElements / Stage::kPiece;
  const int my_position = static_cast<int>(threadIdx.x) / kPieces;
  const int my_element = static_cast<int>(threadIdx.x) % kPieces * Stage::kPiece;
  const bool has_element = my_position < kTile && first_element + my_element < a.head_dim_v;
  const auto* values = static_cast<const typename Stage::Element*>(a.v.elements) + first_element + my_element;
  const auto scale_of = [&](int i) {
    return i < path.n ? block_scale(a.v, cell_begin(a.v, kv_head, path.cell(i)) + first_element) : 0.0f;
  };
  const bool has_scale = kType == DType::kQ8_0 && warp == 0;
  float next_scale = has_scale ? scale_of(lane) : 0.0f;
  const float* weights = args.scores + head_of_row * args.n_tiles * kTile;
  const auto copy_tile = [&](int t) {
    if (t < n_tiles) {
      Stage& stage = stages[t % kStages];
      const int i = t * kTile + my_position;
      if (i < path.n && has_element) {
        gpu_cp_async16(&stage.values[my_position][my_element], values + cell_begin(a.v, kv_head, path.cell(i)));
      }
      if (lane < kTile / 4) gpu_cp_async16(&stage.weights[warp][lane * 4], weights + t * kTile + lane * 4);
      if (has_scale) {
        stage.scales[lane] = next_scale;
        next_scale = scale_of((t + 1) * kTile + lane);
      }
    }
    gpu_cp_async_commit();
  };
  for (int t = 0; t < kStages - 1; ++t) copy_tile(t);
  float acc = 0.0f;
  float next_decay = decay[0];
  for (int t = 0; t < n_tiles; ++t) {
    const float tile_decay = next_decay;
    if (t + 1 < n_tiles) next_decay = decay[t + 1];
    gpu_cp_async_wait<kStages - 2>();
    __syncthreads();  // this tile is there, and nobody reads the one before
    copy_tile(t + kStages - 1);
    const Stage& stage = stages[t % kStages];
    acc = __fmul_rn(acc, tile_decay);
    const int n = min(kTile, path.n - t * kTile);
#pragma unroll 8
    for (int j = 0; j < n; ++j) {
      float value = CellFormat<kType>::decode(stage.values[j][lane]);
      if (kType == DType::kQ8_0) value = __fmul_rn(stage.scales[j], value);
      acc = __fmaf_rn(stage.weights[warp][j], value, acc);
    }
  }
  const int element = first_element + lane;
  if (first_head + warp >= group || element >= a.head_dim_v) return;
  a.out[(row * a.n_heads + head) * a.head_dim_v + element] = __fmul_rn(acc, args.inverse[head_of_row]);
}

}  // namespace

cudaError_t launch_attention_values(const AttentionArgs& args, int64_t n_rows, cudaStream_t stream) {
  const int group = args.a.n_heads / args.a.n_kv_heads;
  const dim3 grid(static_cast<unsigned>((args.a.head_dim_v + kElements - 1) / kElements),
                  static_cast<unsigned>(args.a.n_kv_heads * ((group + kHeads - 1) / kHeads)),
                  static_cast<unsigned>(n_rows));
  const DType dtype = args.a.v.dtype;
  const auto kernel = dtype == DType::kF32   ? sum_values<DType::kF32>
                      : dtype == DType::kF16 ? sum_values<DType::kF16>
                                             : sum_values<DType::kQ8_0>;
  return gpu_launch(kernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace expertree::cuda
