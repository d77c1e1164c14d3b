#include "cuda/runtime/expert_buffers.h"

#include <algorithm>

namespace expertree::cuda {
namespace {

constexpr int64_t kBlocks[2] = {32, 256};
constexpr int64_t kRunsOfTables = 8;  // a batch with more waits for the ones before

void mark_blocks(DType dtype, bool (&blocks)[2]) {
  switch (dtype_info(dtype).activation) {
    case ActivationFormat::kF32: break;
    case ActivationFormat::kQ8_32: blocks[0] = true; break;
    case ActivationFormat::kQ8_256: blocks[1] = true; break;
  }
}

}  // namespace

ExpertSizes::ExpertSizes(const DeviceExpertsPlan& plan) {
  for (const DeviceExpertLayer& layer : plan.layers) {
    if (layer.n_experts == 0) continue;
    const auto& [gate, up, down] = layer.matrices;
    staged_bytes = std::max(staged_bytes, layer.offset_of(kExpertMatrices));
    n_ff = std::max(n_ff, (gate.rows + 255) / 256 * 256);
    n_experts = std::max<int64_t>(n_experts, layer.n_experts);
    mark_blocks(gate.dtype, in_blocks);
    mark_blocks(up.dtype, in_blocks);
    mark_blocks(down.dtype, hidden_blocks);
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
  for (int b = 0; b < 2; ++b) {
    const bool in = sizes.in_blocks[b];
    void* rows = in ? carver->take(int8_rows_bytes(plan.max_inputs, plan.n_embd, kBlocks[b])) : nullptr;
    input_rows[b] = rows != nullptr ? int8_rows_at(rows, plan.max_inputs, plan.n_embd, kBlocks[b]) : Int8Rows{};
    const bool between = sizes.hidden_blocks[b];
    hidden_rows[b] = between ? carver->take(int8_rows_bytes(plan.max_pairs, sizes.n_ff, kBlocks[b])) : nullptr;
  }
  for (const DeviceExpertLayer& layer : plan.layers) {
    LayerParameters parameters;
    for (int m = 0; m < kExpertMatrices && layer.n_experts > 0; ++m) {
      const DeviceExpertLayer::Matrix& matrix = layer.matrices[m];
      if (matrix.scales != nullptr) parameters.scales[m] = carver->take<float>(layer.n_experts);
      if (matrix.biases != nullptr) parameters.biases[m] = carver->take<float>(layer.n_experts * matrix.rows);
    }
    layers.push_back(parameters);
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
