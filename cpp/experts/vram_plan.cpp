#include "cpp/experts/vram_plan.h"

#include <algorithm>

#include "cpp/base/error.h"
#include "cpp/base/memory.h"

namespace expertree {
namespace {

// Outputs of a batch beyond this come in several ones.
constexpr int64_t kOutputBytes = int64_t{64} << 20;

int64_t batch_pairs(const VramModel& model, int64_t wanted) {
  const int64_t all = model.max_rows * model.n_used;
  const int64_t fitting = kOutputBytes / (model.n_embd * static_cast<int64_t>(sizeof(float)));
  const int64_t most = wanted > 0 ? wanted : fitting;
  return std::clamp(most, std::min(model.max_rows, all), all);  // an expert has at most all rows
}

DeviceExpertLayer device_layer(const ExpertLayer& layer, const VramModel::Layer& extra) {
  DeviceExpertLayer out;
  out.n_experts = static_cast<int32_t>(layer.projections[kGate].experts.size());
  for (int p = 0; p < kNumProjections; ++p) {
    const ExpertLayer::Projection& from = layer.projections[p];
    out.matrices[p] = {from.dtype, from.rows, from.k, from.scales.empty() ? nullptr : from.scales.data(),
                       extra.biases[p]};
  }
  return out;
}

}  // namespace

VramPlan vram_shapes(const Device& device, const ExpertIndex& index, const VramModel& model, int64_t max_pairs) {
  VramPlan plan;
  plan.device.unit = model.unit;
  plan.device.n_embd = model.n_embd;
  plan.device.max_inputs = model.weighs_input ? model.max_rows * model.n_used : model.max_rows;
  plan.device.max_pairs = batch_pairs(model, max_pairs);
  std::vector<int64_t> n_experts;
  for (size_t l = 0; l < index.size(); ++l) {
    DeviceExpertLayer layer = device_layer(index[l], model.layers[l]);
    const uint64_t bytes = device.slot_bytes(layer);
    auto& sizes = plan.device.slot_bytes;
    const auto found = static_cast<size_t>(std::find(sizes.begin(), sizes.end(), bytes) - sizes.begin());
    if (bytes == 0) {
      layer.n_experts = 0;
    } else if (found == sizes.size()) {
      sizes.push_back(bytes);
      n_experts.push_back(0);
    }
    if (bytes != 0) n_experts[found] += layer.n_experts;
    plan.class_of_layer.push_back(bytes == 0 ? -1 : static_cast<int32_t>(found));
    plan.device.layers.push_back(layer);
  }
  if (plan.device.slot_bytes.empty()) return plan;
  plan.device.n_slots = std::move(n_experts);
  plan.fixed_bytes = device.fixed_bytes(plan.device);
  plan.least_bytes = plan.all_bytes = plan.fixed_bytes;
  for (size_t c = 0; c < plan.device.slot_bytes.size(); ++c) {
    plan.least_bytes += plan.device.slot_bytes[c];
    plan.all_bytes += plan.device.slot_bytes[c] * static_cast<uint64_t>(plan.device.n_slots[c]);
  }
  return plan;
}

void give_slots(VramPlan* plan, uint64_t budget_bytes) {
  if (plan->device.slot_bytes.empty()) return;
  if (budget_bytes < plan->least_bytes) {
    throw Error(ErrorCode::kOutOfMemory, "a budget of " + std::to_string(budget_bytes) +
                                             " bytes of GPU memory holds no expert beside what running one takes; " +
                                             "this model works with " + std::to_string(plan->least_bytes) + " bytes (" +
                                             format_bytes(plan->least_bytes) +
                                             ") or more: raise --vram, or leave it out");
  }
  const SlotPlan slots = plan_slots(plan->device.slot_bytes, plan->device.n_slots, budget_bytes - plan->fixed_bytes);
  plan->device.n_slots = slots.n_slots;
  plan->bytes = plan->fixed_bytes + slots.bytes;
}

}  // namespace expertree
