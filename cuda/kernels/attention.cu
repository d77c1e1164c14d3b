// Tree attention in three kernels, for as many rows at a time as the scratch memory holds scores of. Which rows go
// together does not matter: no row sees another's scratch.
#include <algorithm>

#include "cuda/kernels/attention_scratch.cuh"

namespace expertree::cuda {
namespace {

constexpr int64_t kMostScratch = int64_t{64} << 20;

int64_t tiles_of(const TreeAttention& a) { return (int64_t{a.n_positions} + kTile - 1) / kTile; }

int64_t floats_of_row(const TreeAttention& a) {
  const int64_t n = tiles_of(a);
  return a.n_heads * (n * (kTile + 1) + 1 + (n > kMostSharedTiles ? 2 * (n + 1) : 0));
}

int64_t rows_at_once(const TreeAttention& a, int64_t n_rows) {
  // 65535: the grid's limit.
  return std::clamp(kMostScratch / (4 * floats_of_row(a)), int64_t{1}, std::min<int64_t>(n_rows, 65535));
}

// Cells begin where they can be copied in pieces of 16 bytes, with a scale for each block.
bool are_cells(const CacheCells& cells, int64_t head_dim) {
  const int64_t step = cell_stride(cells.dtype, 1);
  return step > 0 && cells.cell_stride >= cell_stride(cells.dtype, head_dim) && cells.cell_stride % step == 0 &&
         cells.head_stride % step == 0;
}

}  // namespace

int64_t attention_scratch_bytes(const TreeAttention& a, int64_t n_rows) {
  return n_rows == 0 ? 0 : 4 * rows_at_once(a, n_rows) * floats_of_row(a);
}

int64_t attention_scratch_limit(const TreeAttention& a, int64_t n_rows) {
  const int64_t row_bytes = 4 * floats_of_row(a);
  return std::min(n_rows * row_bytes, std::max(kMostScratch, row_bytes));
}

cudaError_t launch_attention(const TreeAttention& a, int64_t n_rows, void* scratch, cudaStream_t stream,
                             const int32_t* n_rows_device) {
  if (a.n_kv_heads < 1 || a.n_heads % a.n_kv_heads != 0 || !are_cells(a.k, a.head_dim_k) ||
      !are_cells(a.v, a.head_dim_v)) {
    return cudaErrorInvalidValue;
  }
  if (n_rows == 0) return cudaSuccess;
  const int64_t step = rows_at_once(a, n_rows);
  const int64_t n_tiles = tiles_of(a);
  const int64_t n_heads = step * a.n_heads;
  auto* scores = static_cast<float*>(scratch);
  float* decay = scores + n_heads * n_tiles * kTile;
  float* inverse = decay + n_heads * n_tiles;
  for (int64_t row = 0; row < n_rows; row += step) {
    const int64_t rows = std::min(step, n_rows - row);
    const AttentionArgs args{.a = a,
                             .n_rows_device = n_rows_device,
                             .first_row = row,
                             .n_tiles = n_tiles,
                             .scores = scores,
                             .decay = decay,
                             .inverse = inverse,
                             .maxima = n_tiles > kMostSharedTiles ? inverse + n_heads : nullptr};
    cudaError_t error = launch_attention_scores(args, rows, stream);
    if (error == cudaSuccess) error = launch_attention_weights(args, rows, stream);
    if (error == cudaSuccess) error = launch_attention_values(args, rows, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace expertree::cuda
