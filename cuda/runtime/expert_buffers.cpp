#include "cuda/runtime/expert_buffers.h"

#include <algorithm>

namespace expertree::cuda {
namespace {

constexpr int64_t kRunsOfTables = 8;  // a batch with more waits for the ones before

void mark_form(DType dtype, bool (&forms)[kRowForms]) {
  if (row_form(dtype) >= 0) forms[row_form(dtype)] = true;
}

}  // namespace

ExpertSizes::ExpertSizes(const DeviceExpertsPlan& plan) {
  for (const DeviceExpertLayer& layer : plan.layers) {
    if (layer.n_experts == 0) continue;
    const auto& [gate, up, down] = layer.matrices;
    staged_bytes = std::max(staged_bytes, layer.offset_of(kExpertMatrices));
    n_ff = std::max(n_ff, (gate.rows + 255) / 256 * 256);
    n_experts = std::max<int64_t>(n_experts, layer.n_experts);
    mark_form(gate.dtype, in_forms);
    mark_form(up.dtype, in_forms);
    mark_form(down.dtype, hidden_forms);
    scratch = scratch || gate.dtype != up.dtype;
  }
}

BatchTables BatchTables::take(Carver* carver, int64_t n_experts, int64_t n_pairs) {
  BatchTables tables{};
  tables.data = carver->take<const void*>(n_experts);
  tables.active = carver->take<int32_t>(n_experts);
  tables.n_active = carver->take<int32_t>(1);
  tables.begin = carver->take<int32_t>(n_experts + 1);
  tables.x_row = carver->take<int32_t>(n_pairs);
  tables.slot = carver->take<int32_t>(n_pairs);
  return tables;
}

int64_t table_bytes(const DeviceExpertsPlan& plan, const ExpertSizes& sizes) {
  Carver carver(nullptr);
  BatchTables::take(&carver, sizes.n_experts, plan.max_pairs);
  return static_cast<int64_t>(carver.used_bytes()) * kRunsOfTables;
}

DeviceBuffers::DeviceBuffers(const DeviceExpertsPlan& plan, const ExpertSizes& sizes, Carver* carver) {
  for (std::byte*& buffer : staged) buffer = carver->take(sizes.staged_bytes);
  inputs = carver->take<float>(plan.max_inputs * plan.n_embd);
  hidden = carver->take<float>(plan.max_pairs * sizes.n_ff);
  scratch = sizes.scratch ? carver->take<float>(plan.max_pairs * sizes.n_ff) : nullptr;
  outputs = carver->take<float>(plan.max_pairs * plan.n_embd);
  tables = carver->take(table_bytes(plan, sizes));
  missing = carver->take<int32_t>(sizes.n_experts + 1);
  for (int f = 0; f < kRowForms; ++f) {
    const bool in = sizes.in_forms[f];
    void* rows = in ? carver->take(int8_rows_bytes(plan.max_inputs, plan.n_embd, kFormBlocks[f])) : nullptr;
    input_rows[f] = rows != nullptr ? int8_rows_at(rows, plan.max_inputs, plan.n_embd, kFormBlocks[f]) : Int8Rows{};
    const bool between = sizes.hidden_forms[f];
    hidden_rows[f] = between ? carver->take(int8_rows_bytes(plan.max_pairs, sizes.n_ff, kFormBlocks[f])) : nullptr;
  }
  for (const DeviceExpertLayer& layer : plan.layers) {
    LayerParameters parameters;
    for (int m = 0; m < kExpertMatrices && layer.n_experts > 0; ++m) {
      const DeviceExpertLayer::Matrix& matrix = layer.matrices[m];
      if (matrix.scales != nullptr) parameters.scales[m] = carver->take<float>(layer.n_experts);
      if (matrix.biases != nullptr) parameters.biases[m] = carver->take<float>(layer.n_experts * matrix.rows);
    }
    layers.push_back(parameters);
    published.push_back(carver->take<const void*>(layer.n_experts));
  }
  for (size_t c = 0; c < plan.n_slots.size(); ++c) {
    for (int64_t s = 0; s < plan.n_slots[c]; ++s) {
      slots.push_back(carver->take(static_cast<int64_t>(plan.slot_bytes[c])));
    }
  }
}

PinnedBuffers::PinnedBuffers(const DeviceExpertsPlan& plan, const ExpertSizes& sizes, Carver* carver) {
  for (std::byte*& buffer : staged) buffer = carver->take(sizes.staged_bytes);
  inputs = carver->take<float>(plan.max_inputs * plan.n_embd);
  outputs = carver->take<float>(plan.max_pairs * plan.n_embd);
  tables = carver->take(table_bytes(plan, sizes));
}

}  // namespace expertree::cuda
