#include "cuda/runtime/attention_buffers.h"

#include <algorithm>
#include <utility>

#include "cuda/kernels/attention_kernels.h"
#include "cuda/kernels/int8_rows.h"

namespace expertree::cuda {
namespace {

int64_t scratch_bytes(const DeviceAttentionLayer& layer, const DeviceDensePlan& plan) {
  TreeAttention a{};
  a.n_heads = layer.n_heads;
  a.n_positions = static_cast<int32_t>(plan.n_cells);
  return attention_scratch_limit(a, plan.max_rows);
}

// Of all KV heads and cells.
CacheCells take_cells(DType dtype, int64_t n_kv_heads, int64_t head_dim, int64_t n_cells, Carver* carver) {
  const int64_t stride = cell_stride(dtype, head_dim);
  const int64_t n = n_kv_heads * n_cells * stride;
  return {.dtype = dtype,
          .elements = carver->take(n * element_bytes(dtype)),
          .scales = dtype == DType::kQ8_0 ? carver->take<uint16_t>(n / 32) : nullptr,
          .head_stride = n_cells * stride,
          .cell_stride = stride};
}

}  // namespace

AttentionTables AttentionTables::take(Carver* carver, const TableShape& shape) {
  const int64_t n_rows = shape.n_rows;
  const auto take_angles = [&](int64_t pairs) {
    return Angles{carver->take<float>(n_rows * pairs), carver->take<float>(n_rows * pairs), pairs};
  };
  AttentionTables tables{};
  tables.angles = take_angles(shape.n_pairs);
  tables.windowed = take_angles(shape.n_pairs_windowed);
  tables.query_scale = carver->take<float>(n_rows);
  for (int32_t** of_rows :
       {&tables.cells, &tables.first, &tables.base, &tables.n_prefix, &tables.tail, &tables.n_tail}) {
    *of_rows = carver->take<int32_t>(n_rows);
  }
  tables.tails = carver->take<int32_t>(shape.n_tails);
  return tables;
}

int64_t attention_table_bytes(const DeviceDensePlan& plan) {
  if (plan.blocks.empty()) return 0;
  Carver carver(nullptr);
  AttentionTables::take(&carver, {plan.max_rows, plan.max_pairs, plan.max_pairs, plan.max_tails});
  return static_cast<int64_t>(carver.used_bytes());
}

AttentionDevice::AttentionDevice(const DeviceDensePlan& plan, const bool (&forms)[kRowForms], Carver* carver) {
  if (plan.blocks.empty()) return;
  int64_t queries = 0, gates = 0, out = 0, n_embd = 0, scratch_size = 0;
  for (const DeviceBlock& block : plan.blocks) {
    const DeviceAttentionLayer& layer = block.attention;
    n_embd = std::max(n_embd, block.n_embd);
    queries = std::max(queries, layer.q_width());
    out = std::max(out, layer.attended_width());
    if (layer.gate >= 0) gates = out;
    scratch_size = std::max(scratch_size, scratch_bytes(layer, plan));
  }
  residual = carver->take<float>(plan.max_rows * n_embd);
  q = carver->take<float>(plan.max_rows * queries);
  gate = carver->take<float>(plan.max_rows * gates);
  attended = carver->take<float>(plan.max_rows * out);
  added = carver->take<float>(plan.max_rows * n_embd);
  for (int f = 0; f < kRowForms; ++f) {
    if (forms[f]) attended_rows[f] = carver->take(int8_rows_bytes(plan.max_rows, out, kFormBlocks[f]));
  }
  scratch = carver->take(scratch_size);
  tables = carver->take(attention_table_bytes(plan));
  for (const DeviceBlock& from : plan.blocks) {
    const DeviceAttentionLayer& shape = from.attention;
    Block block;
    block.parameters = from;
    for (const DeviceBlock::Vector& vector : block.parameters.vectors()) *vector.at = carver->take<float>(vector.n);
    block.keys = take_cells(shape.keys, shape.n_kv_heads, shape.head_dim_k, plan.n_cells, carver);
    block.values = take_cells(shape.values, shape.n_kv_heads, shape.head_dim_v, plan.n_cells, carver);
    blocks.push_back(std::move(block));
  }
}

}  // namespace expertree::cuda
