// Attention of a block: the part of CudaDense that keeps keys and values.
#include <algorithm>
#include <cstring>

#include "cpp/base/error.h"
#include "cuda/kernels/attention_kernels.h"
#include "cuda/kernels/row_kernels.h"
#include "cuda/runtime/call.h"
#include "cuda/runtime/cuda_dense.h"

namespace expertree::cuda {
namespace {

// What a graph is made for grows in doubling steps, so that contexts and trees that grow seldom need another one: positions
// that attention's grid has blocks for, and entries of tails that are copied.
constexpr int64_t kLeastPositions = 256;
constexpr int64_t kLeastTails = 64;

int64_t doubled(int64_t n, int64_t least) {
  while (least < n) least *= 2;
  return least;
}

int64_t positions_with_room(int64_t n, int64_t n_cells) { return std::min(doubled(n, kLeastPositions), n_cells); }

int64_t tails_with_room(int64_t n, int64_t max_tails) {
  return std::min(doubled(n, kLeastTails), (max_tails + kLeastTails - 1) / kLeastTails * kLeastTails);
}

}  // namespace

void CudaDense::upload(float* to, const float* from, int64_t n) {
  if (to == nullptr) return;
  const auto size = static_cast<size_t>(n) * sizeof(float);
  std::memcpy(load_buffer(), from, size);
  const std::byte* there = send_buffer(static_cast<int64_t>(size));
  CUDA_CHECK(cudaMemcpyAsync(to, there, size, cudaMemcpyDeviceToDevice, stream_.get()));
}

void CudaDense::upload_block_parameters() {
  for (size_t b = 0; b < plan_.blocks.size(); ++b) {
    const auto from = plan_.blocks[b].vectors();
    const auto to = attention_.blocks[b].parameters.vectors();
    for (size_t i = 0; i < from.size(); ++i) {
      upload(const_cast<float*>(*to[i].at), *from[i].at, from[i].n);
      *from[i].at = nullptr;  // the caller's
    }
  }
}

void CudaDense::set_rows(const DeviceAttentionRows& rows) {
  const auto n_tails = std::ssize(rows.tails);
  const int64_t n_pairs = rows.angles.n_pairs, n_windowed = rows.windowed.n_pairs;
  ET_CHECK(pending_ && std::max(n_pairs, n_windowed) <= plan_.max_pairs && n_tails <= plan_.max_tails);
  tables_shape_ = {shape_.n_rows, n_pairs, n_windowed, tails_with_room(n_tails, plan_.max_tails)};
  shape_.sends_tables = true;
  Carver pinned(pinned_.tables);
  const AttentionTables to = AttentionTables::take(&pinned, tables_shape_);
  const int64_t n_rows = *pinned_.inputs.n_rows;
  const auto copy_angles = [&](const DeviceAngles& angles, const AttentionTables::Angles& table) {
    std::copy_n(angles.cos, n_rows * angles.n_pairs, table.cos);
    std::copy_n(angles.sin, n_rows * angles.n_pairs, table.sin);
  };
  copy_angles(rows.angles, to.angles);
  copy_angles(rows.windowed, to.windowed);
  if (rows.query_scale != nullptr) std::copy_n(rows.query_scale, n_rows, to.query_scale);
  std::copy_n(rows.cells, n_rows, to.cells);
  std::copy_n(rows.first, n_rows, to.first);
  std::copy_n(rows.base, n_rows, to.base);
  std::copy_n(rows.n_prefix, n_rows, to.n_prefix);
  std::copy_n(rows.tail, n_rows, to.tail);
  std::copy_n(rows.n_tail, n_rows, to.n_tail);
  std::ranges::copy(rows.tails, to.tails);
  int64_t longest = 0;
  for (int64_t r = 0; r < n_rows; ++r) longest = std::max(longest, int64_t{rows.n_prefix[r]} + rows.n_tail[r]);
  n_positions_ = shape_.n_rows <= kMostPreparedRows ? positions_with_room(longest, plan_.n_cells) : longest;
  Carver device(attention_.tables);
  tables_ = AttentionTables::take(&device, tables_shape_);
}

void CudaDense::send_tables() {
  Carver measure(nullptr);
  AttentionTables::take(&measure, shape_.tables);
  CUDA_CHECK(
      cudaMemcpyAsync(attention_.tables, pinned_.tables, measure.used_bytes(), cudaMemcpyHostToDevice, stream_.get()));
}

// Norm, rotation and scale of queries or keys, in the model's order.
void CudaDense::prepare_heads(const DeviceAttentionLayer& layer, const Heads& heads) {
  const AttentionTables::Angles& angles = layer.windowed ? tables_.windowed : tables_.angles;
  const int64_t width = int64_t{heads.n} * layer.head_dim_k;
  const auto norm = [&] {
    if (heads.norm == DeviceHeadNorm::kNone) return;
    const int64_t n = heads.norm == DeviceHeadNorm::kWhole ? width : layer.head_dim_k;
    CUDA_CHECK(launch_rms_norm(heads.x, n, heads.weight, nullptr, layer.eps, n_rows_ * width / n, n, heads.x, n,
                               stream_.get()));
  };
  Rope rope{.x = heads.x,
            .row_stride = width,
            .head_stride = layer.head_dim_k,
            .n_heads = heads.n,
            .head_dim = layer.head_dim_k,
            .cos = angles.cos,
            .sin = angles.sin,
            .n_pairs = layer.has_rope ? static_cast<int32_t>(angles.n_pairs) : 0,
            .consecutive = layer.consecutive,
            .scale = layer.norm_after_rope ? nullptr : heads.scale};
  if (!layer.norm_after_rope) norm();
  CUDA_CHECK(launch_rope(rope, n_rows_, stream_.get()));
  if (!layer.norm_after_rope) return;
  norm();
  rope.n_pairs = 0;
  rope.scale = heads.scale;
  CUDA_CHECK(launch_rope(rope, n_rows_, stream_.get()));
}

void CudaDense::attend(const AttentionDevice::Block& block) {
  const DeviceAttentionLayer& layer = block.parameters.attention;
  const TreeAttention args{.q = attention_.q,
                           .k = block.keys,
                           .v = block.values,
                           .n_heads = layer.n_heads,
                           .n_kv_heads = layer.n_kv_heads,
                           .head_dim_k = layer.head_dim_k,
                           .head_dim_v = layer.head_dim_v,
                           .first = layer.windowed ? tables_.first : nullptr,
                           .base = tables_.base,
                           .n_prefix = tables_.n_prefix,
                           .tail = tables_.tail,
                           .n_tail = tables_.n_tail,
                           .tails = tables_.tails,
                           .n_positions = static_cast<int32_t>(shape_.n_positions),
                           .scale = layer.scale,
                           .softcap = layer.softcap,
                           .sinks = layer.sinks,
                           .out = attention_.attended};
  CUDA_CHECK(launch_attention(args, n_rows_, attention_.scratch, stream_.get(), device_.inputs.n_rows));
}

void CudaDense::attention(const AttentionDevice::Block& block, float* k, float* v, float* y) {
  const DeviceAttentionLayer& layer = block.parameters.attention;
  const cudaStream_t stream = stream_.get();
  product_into(layer.q, attention_.q);
  product_into(layer.k, k);
  if (layer.v >= 0) {
    product_into(layer.v, v);
  } else {
    const auto size = static_cast<size_t>(n_rows_ * layer.v_width()) * sizeof(float);
    CUDA_CHECK(cudaMemcpyAsync(v, k, size, cudaMemcpyDeviceToDevice, stream));
  }
  if (layer.gate >= 0) product_into(layer.gate, attention_.gate);
  CUDA_CHECK(launch_clamp(attention_.q, n_rows_ * layer.q_width(), layer.limit, stream));
  CUDA_CHECK(launch_clamp(k, n_rows_ * layer.k_width(), layer.limit, stream));
  CUDA_CHECK(launch_clamp(v, n_rows_ * layer.v_width(), layer.limit, stream));
  const float* scale = layer.has_query_scale ? tables_.query_scale : nullptr;
  prepare_heads(layer, {attention_.q, layer.n_heads, layer.norm_of_q, layer.q_norm, scale});
  prepare_heads(layer, {k, layer.n_kv_heads, layer.norm_of_k, layer.k_norm, nullptr});
  if (layer.normalize_values) {
    CUDA_CHECK(launch_rms_norm(v, layer.head_dim_v, nullptr, nullptr, layer.eps, n_rows_ * layer.n_kv_heads,
                               layer.head_dim_v, v, layer.head_dim_v, stream));
  }
  CUDA_CHECK(launch_store_cells(k, layer.k_width(), layer.n_kv_heads, layer.head_dim_k, tables_.cells, n_rows_,
                                block.keys, stream, device_.inputs.n_rows));
  CUDA_CHECK(launch_store_cells(v, layer.v_width(), layer.n_kv_heads, layer.head_dim_v, tables_.cells, n_rows_,
                                block.values, stream, device_.inputs.n_rows));
  attend(block);
  if (layer.gate >= 0) {
    CUDA_CHECK(
        launch_sigmoid_gate(attention_.attended, attention_.gate, false, n_rows_, layer.attended_width(), stream));
  }
  const DenseMatrix output = matrix(layer.output);
  const ProductInput attended = rows_for(output.dtype, attention_.attended, attention_.attended_rows, output.k);
  CUDA_CHECK(launch_product(output, attended, static_cast<int32_t>(n_rows_), y, output.rows, stream));
  CUDA_CHECK(launch_scale_softcap(y, n_rows_ * output.rows, layer.output_scale, 0.0f, stream));
}

void CudaDense::put_cells(int32_t number, int64_t cell, int64_t n, const std::byte* keys, const std::byte* values) {
  const AttentionDevice::Block& to = attention_.blocks[static_cast<size_t>(number)];
  const DeviceAttentionLayer& layer = to.parameters.attention;
  const int64_t key = layer.n_kv_heads * layer.key_bytes(), value = layer.n_kv_heads * layer.value_bytes();
  const int64_t step = sizes_.load_bytes / cell_row_bytes(layer);
  for (int64_t at = 0; at < n; at += step) {
    const int64_t rows = std::min(step, n - at);
    std::byte* buffer = load_buffer();
    std::copy_n(keys + at * key, rows * key, buffer);
    std::copy_n(values + at * value, rows * value, buffer + rows * key);
    const std::byte* there = send_buffer(rows * (key + value));
    CUDA_CHECK(launch_copy_cells(there, layer.key_bytes(), layer.n_kv_heads, cell + at, rows, to.keys, stream_.get()));
    CUDA_CHECK(launch_copy_cells(there + rows * key, layer.value_bytes(), layer.n_kv_heads, cell + at, rows, to.values,
                                 stream_.get()));
  }
}

}  // namespace expertree::cuda
