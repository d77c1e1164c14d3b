// What the three attention kernels leave for one another, for a batch of rows. Positions are counted from the first that
// a row sees, so that tiles of 32 begin there (canonical.h, C8).
#pragma once

#include "cuda/gpu/gpu.h"
#include "cuda/kernels/attention_kernels.h"
#include "cuda/kernels/cache_cells.cuh"
#include "cuda/kernels/row_count.cuh"

namespace expertree::cuda {

constexpr int kTile = 32;
// Maxima of more tiles than these, 196,576 positions, lie in scratch memory instead of 48 KiB of shared memory.
constexpr int64_t kMostSharedTiles = 48 * 1024 / (2 * sizeof(float)) - 1;

struct AttentionArgs {
  TreeAttention a;
  const int32_t* n_rows_device;
  int64_t first_row;  // of the batch
  int64_t n_tiles;  // most that a row has
  float* scores;  // [rows][n_heads][n_tiles * 32]: scores, then their exponentials
  float* decay;  // [rows][n_heads][n_tiles]: what the sum before a tile is multiplied with
  float* inverse;  // [rows][n_heads]: 1 / l
  float* maxima;  // [rows][n_heads][2][n_tiles + 1] or null: in shared memory

  __device__ int64_t head_of_row(int64_t row_in_batch, int head) const { return row_in_batch * a.n_heads + head; }
};

// The cells of one row's positions.
struct PathOfRow {
  int first;
  int base;
  int n_prefix;
  int n;  // positions from the first on
  const int32_t* tail;

  __device__ PathOfRow(const TreeAttention& a, int64_t row)
      : first(a.first != nullptr ? a.first[row] : 0),
        base(a.base[row]),
        n_prefix(a.n_prefix[row]),
        n(n_prefix + a.n_tail[row] - first),
        tail(a.tails + a.tail[row]) {}

  __device__ int64_t cell(int i) const {
    const int position = first + i;
    return position < n_prefix ? base + position : tail[position - n_prefix];
  }
};

cudaError_t launch_attention_scores(const AttentionArgs& args, int64_t n_rows, cudaStream_t stream);
cudaError_t launch_attention_weights(const AttentionArgs& args, int64_t n_rows, cudaStream_t stream);
cudaError_t launch_attention_values(const AttentionArgs& args, int64_t n_rows, cudaStream_t stream);

}  // namespace expertree::cuda
