// The part of the device seam (device.h) for attention as a whole, with keys and values kept in the device's memory.
//
// Cells are numbered through one pool. A sequence has a range of them, the same one in every layer.
#pragma once

#include <cstdint>
#include <span>

#include "cpp/tensor/dtype.h"

namespace expertree {

enum class DeviceHeadNorm : uint8_t { kNone, kPerHead, kWhole };  // of queries, and of keys

// Of one layer. Matrices are numbers in DeviceDensePlan; arrays are read by make_dense.
struct DeviceAttentionLayer {
  int32_t q = -1, k = -1;
  int32_t v = -1;  // -1: the values are the keys' projection
  int32_t gate = -1;  // -1: none; else the heads' output is multiplied with its sigmoid
  int32_t output = -1;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  DType keys = DType::kF32;  // as cells keep them: F32, F16, Q8_0 (canonical.h, C14)
  DType values = DType::kF32;
  float limit = 0.0f;  // of the projections; 0: none
  DeviceHeadNorm norm_of_q = DeviceHeadNorm::kNone;
  DeviceHeadNorm norm_of_k = DeviceHeadNorm::kNone;
  const float* q_norm = nullptr;  // [head_dim_k], or [all heads]; nullptr: 1
  const float* k_norm = nullptr;
  bool norm_after_rope = false;
  bool normalize_values = false;  // each head, without a weight
  float eps = 0.0f;
  bool consecutive = false;  // pairs (2i, 2i + 1)
  float scale = 0.0f;  // of scores
  float softcap = 0.0f;  // 0: none
  const float* sinks = nullptr;  // [n_heads] or none
  float output_scale = 1.0f;
  bool windowed = false;  // which of the angles turn it, and whether it sees from `first` on or from the beginning
  bool has_rope = true;
  bool has_query_scale = false;

  int64_t q_width() const { return int64_t{n_heads} * head_dim_k; }
  int64_t k_width() const { return int64_t{n_kv_heads} * head_dim_k; }
  int64_t v_width() const { return int64_t{n_kv_heads} * head_dim_v; }
  int64_t q_norm_size() const { return norm_of_q == DeviceHeadNorm::kWhole ? q_width() : head_dim_k; }
  int64_t k_norm_size() const { return norm_of_k == DeviceHeadNorm::kWhole ? k_width() : head_dim_k; }
  int64_t attended_width() const { return int64_t{n_heads} * head_dim_v; }
  // Bytes of one head in a cell, as put_cells() reads it: whole blocks, the last filled up.
  int64_t key_bytes() const { return cell_bytes(keys, head_dim_k); }
  int64_t value_bytes() const { return cell_bytes(values, head_dim_v); }

 private:
  static int64_t cell_bytes(DType dtype, int64_t head_dim) {
    const int64_t block = dtype_info(dtype).block_size;
    return row_bytes(dtype, (head_dim + block - 1) / block * block);
  }
};

// What turns the heads of rows.
struct DeviceAngles {
  int64_t n_pairs = 0;
  const float* cos = nullptr;  // [n_rows][n_pairs]
  const float* sin = nullptr;
};

// What layers are told of a pass's rows. Row r sees the positions first[r], or 0, .. n_prefix[r] + n_tail[r] - 1 of its path,
// at least one: the cells base[r] .. base[r] + n_prefix[r] - 1, then tails[tail[r]] .. tails[tail[r] + n_tail[r] - 1].
struct DeviceAttentionRows {
  DeviceAngles angles;
  DeviceAngles windowed;  // of layers with a window
  const float* query_scale = nullptr;  // [n_rows], of layers that have one
  const int32_t* cells = nullptr;  // [n_rows], in the pool: of the rows themselves
  const int32_t* first = nullptr;  // [n_rows], of layers with a window; others see from 0 on
  const int32_t* base = nullptr;  // [n_rows], in the pool
  const int32_t* n_prefix = nullptr;  // [n_rows]
  const int32_t* tail = nullptr;  // [n_rows]
  const int32_t* n_tail = nullptr;  // [n_rows]
  std::span<const int32_t> tails;  // in the pool
};

}  // namespace expertree
