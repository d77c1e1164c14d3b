// Launcher of tree attention: each row sees the positions of its own path (canonical.h, C8).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/cache_cells.h"

namespace expertree::cuda {

struct TreeAttention {
  const float* q;        // [n_rows][n_heads][head_dim_k]
  CacheCells k;
  CacheCells v;          // may be k: the leading elements of the keys
  int32_t n_heads;
  int32_t n_kv_heads;    // divides n_heads
  int32_t head_dim_k;    // up to 1024
  int32_t head_dim_v;    // up to 1024
  // Row r sees positions first[r] .. n_prefix[r] + n_tail[r] - 1 of its path, at least one: cells base[r] .. base[r] +
  // n_prefix[r] - 1, then tails[tail[r]] .. tails[tail[r] + n_tail[r] - 1].
  const int32_t* first;  // [n_rows] or null: all 0
  const int32_t* base;  // [n_rows]
  const int32_t* n_prefix;  // [n_rows]
  const int32_t* tail;  // [n_rows]
  const int32_t* n_tail;  // [n_rows]
  const int32_t* tails;
  int32_t n_positions;  // host: no row's path is longer; sets the grid
  float scale;
  float softcap;  // 0: none
  const float* sinks;  // [n_heads] or null
  float* out;  // [n_rows][n_heads][head_dim_v]
};

// Bytes of scratch that launch_attention needs.
int64_t attention_scratch_bytes(const TreeAttention& args, int64_t n_rows);
// The most of it for up to n_rows rows that see no more positions than these.
int64_t attention_scratch_limit(const TreeAttention& args, int64_t n_rows);
// n_rows_device: as in row_kernels.h.
cudaError_t launch_attention(const TreeAttention& args, int64_t n_rows, void* scratch, cudaStream_t stream,
                             const int32_t* n_rows_device = nullptr);

}  // namespace expertree::cuda
