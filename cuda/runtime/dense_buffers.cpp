#include "cuda/runtime/dense_buffers.h"

#include <algorithm>

#include "cuda/kernels/packed_layout.h"
#include "cuda/kernels/top_k_kernels.h"

namespace expertree::cuda {
namespace {

// Of a call that asks for the best logits: as many as leave room for all of their rows.
int64_t most_head_rows(const DeviceDensePlan& plan, int64_t n_vocab) {
  return std::min(plan.max_rows, plan.max_outputs / n_vocab);
}

constexpr int64_t kLoadBytes = int64_t{4} << 20;  // of a loading buffer, where a row is not larger

}  // namespace

DenseSizes::DenseSizes(const DeviceDensePlan& plan) {
  for (const DeviceMatrix& w : plan.matrices) {
    const int64_t row = row_bytes(w.dtype, w.k);
    load_bytes = std::max({load_bytes, row, std::min(w.size_bytes(), kLoadBytes)});
    if (w.bias != nullptr) load_bytes = std::max(load_bytes, w.rows * static_cast<int64_t>(sizeof(float)));
    if (row_form(w.dtype) >= 0) forms[row_form(w.dtype)] = true;
  }
  if (plan.head.matrix >= 0) {
    load_bytes = std::max(load_bytes, plan.head.n_embd * static_cast<int64_t>(sizeof(float)));
  }
  for (DeviceBlock block : plan.blocks) {
    for (const DeviceBlock::Vector& vector : block.vectors()) {
      load_bytes = std::max(load_bytes, vector.n * static_cast<int64_t>(sizeof(float)));
    }
    load_bytes = std::max(load_bytes, cell_row_bytes(block.attention));
  }
}

int64_t cell_row_bytes(const DeviceAttentionLayer& layer) {
  return layer.n_kv_heads * (layer.key_bytes() + layer.value_bytes());
}

CallInputs CallInputs::take(Carver* carver, int64_t n_floats) {
  auto* head = carver->take<float>(kHeadFloats + n_floats);
  return {reinterpret_cast<int32_t*>(head), head == nullptr ? nullptr : head + kHeadFloats};
}

DenseDevice::DenseDevice(const DeviceDensePlan& plan, const DenseSizes& sizes, Carver* carver) {
  for (std::byte*& buffer : load) buffer = carver->take(sizes.load_bytes);
  const int64_t hidden_floats = plan.max_rows * plan.max_hidden;
  inputs = CallInputs::take(carver, plan.max_rows * plan.max_k);
  hidden = carver->take<float>(hidden_floats);
  scratch = plan.mixed_units ? carver->take<float>(hidden_floats) : nullptr;
  for (int f = 0; f < kRowForms; ++f) {
    const bool used = sizes.forms[f];
    input_rows[f] = used ? carver->take(int8_rows_bytes(plan.max_rows, plan.max_k, kFormBlocks[f])) : nullptr;
    hidden_rows[f] = used ? carver->take(int8_rows_bytes(plan.max_rows, plan.max_hidden, kFormBlocks[f])) : nullptr;
  }
  outputs = carver->take<float>(plan.max_outputs);
  const DeviceHead& head = plan.head;
  if (head.matrix >= 0) {
    const int64_t n_vocab = plan.matrices[static_cast<size_t>(head.matrix)].rows;
    if (head.norm.weight != nullptr) head_weight = carver->take<float>(head.n_embd);
    if (head.norm.bias != nullptr) head_bias = carver->take<float>(head.n_embd);
    const auto k = static_cast<int32_t>(std::min<int64_t>(kMostBest, n_vocab));
    best_scratch = carver->take(top_k_scratch_bytes(most_head_rows(plan, n_vocab), n_vocab, k));
  }
  for (const DeviceMatrix& w : plan.matrices) {
    biases.push_back(w.bias != nullptr ? carver->take<float>(w.rows) : nullptr);
    matrices.push_back(carver->take(packed_layout(w.dtype, w.rows, w.k).bytes));
  }
}

DensePinned::DensePinned(const DeviceDensePlan& plan, const DenseSizes& sizes, Carver* carver) {
  for (std::byte*& buffer : load) buffer = carver->take(sizes.load_bytes);
  inputs = CallInputs::take(carver, plan.max_rows * plan.max_k);
  outputs = carver->take<float>(plan.max_outputs);
  tables = carver->take(attention_table_bytes(plan));
}

}  // namespace expertree::cuda
