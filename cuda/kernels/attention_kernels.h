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
  // Row r sees positions first[r] .. n_prefix + n_tail[r] - 1 of its path: cells 0 .. n_prefix - 1, then
  // tail[r * tail_stride + i]. At least one; n_tail may be negative.
  const int32_t* first;   // [n_rows] or null: all 0
  int32_t n_prefix;       // host; of all rows. n_prefix_device, where not null, is read instead
  const int32_t* n_prefix_device;  // [1]; n_prefix is then an upper bound, which sets the grid
  const int32_t* n_tail;  // [n_rows]
  const int32_t* tail;
  int64_t tail_stride;    // at least the longest tail
  float scale;
  float softcap;          // 0: none
  const float* sinks;     // [n_heads] or null
  float* out;             // [n_rows][n_heads][head_dim_v]
};

// Bytes of scratch that launch_attention needs.
int64_t attention_scratch_bytes(const TreeAttention& args, int64_t n_rows);
// The most of it for up to n_rows rows that see no more positions than these.
int64_t attention_scratch_limit(const TreeAttention& args, int64_t n_rows);
cudaError_t launch_attention(const TreeAttention& args, int64_t n_rows, void* scratch, cudaStream_t stream);

}  // namespace expertree::cuda
