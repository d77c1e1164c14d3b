#include "cpp/experts/slot_layout.h"

#include <algorithm>

#include "cpp/base/error.h"
#include "cpp/base/memory.h"
#include "cpp/tensor/weight.h"

namespace expertree {
namespace {

constexpr uint64_t kMinAlignment = 64;

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

SlotLayout::SlotLayout(const ExpertIndex& index, const GgufReader& reader,
                       const std::function<uint64_t(int32_t)>& alignment) {
  for (const ExpertLayer& source : index) {
    Layer layer{static_cast<int32_t>(source.projections[kGate].experts.size()), 0, 0, {}};
    layer.pieces.resize(static_cast<size_t>(layer.n_experts) * kNumProjections);
    uint64_t begin = 0;
    for (int p = 0; p < kNumProjections; ++p) {
      const std::vector<ExpertSlice>& slices = source.projections[p].experts;
      uint64_t block = kMinAlignment;
      uint64_t bytes = 0;
      for (size_t e = 0; e < slices.size(); ++e) {
        const GgufTensor& tensor = reader.tensors()[static_cast<size_t>(slices[e].file_tensor)];
        const uint64_t offset = tensor.offset + slices[e].offset;
        const uint64_t step = alignment(tensor.file_index);
        const uint64_t before = offset % step;
        block = std::max(block, step);
        bytes = std::max(bytes, before + slices[e].size_bytes + kOverreadBytes);
        layer.pieces[e * kNumProjections + static_cast<size_t>(p)] = {tensor.file_index, offset, slices[e].size_bytes,
                                                                      before};
      }
      begin = round_up(begin, block);
      for (size_t e = 0; e < slices.size(); ++e) layer.pieces[e * kNumProjections + static_cast<size_t>(p)].at += begin;
      begin += round_up(bytes, block);
      if (!slices.empty()) layer.file_bytes += slices[0].size_bytes;
    }
    const auto found = std::find(slot_bytes_.begin(), slot_bytes_.end(), begin);
    layer.size_class = static_cast<int32_t>(found - slot_bytes_.begin());
    if (found == slot_bytes_.end()) slot_bytes_.push_back(begin);
    n_experts_ = std::max(n_experts_, layer.n_experts);
    layers_.push_back(std::move(layer));
  }
}

std::vector<int64_t> SlotLayout::experts_of_classes() const {
  std::vector<int64_t> counts(slot_bytes_.size(), 0);
  for (const Layer& layer : layers_) counts[static_cast<size_t>(layer.size_class)] += layer.n_experts;
  return counts;
}

SlotPlan plan_slots(const std::vector<uint64_t>& slot_bytes, const std::vector<int64_t>& n_experts, uint64_t budget) {
  SlotPlan plan{std::vector<int64_t>(slot_bytes.size(), 1), 0, 0, 0};
  for (size_t c = 0; c < slot_bytes.size(); ++c) {
    plan.all_bytes += slot_bytes[c] * static_cast<uint64_t>(n_experts[c]);
    plan.least_bytes += slot_bytes[c];
  }
  if (budget < plan.least_bytes) {
    throw Error(ErrorCode::kOutOfMemory, "a budget of " + std::to_string(budget) +
                                             " bytes holds no single expert of every kind; this model works with " +
                                             std::to_string(plan.least_bytes) + " bytes (" +
                                             format_bytes(plan.least_bytes) + ") or more: raise --ram");
  }
  const double share =
      std::min(1.0, static_cast<double>(budget) / static_cast<double>(std::max<uint64_t>(1, plan.all_bytes)));
  plan.bytes = plan.least_bytes;
  for (size_t c = 0; c < slot_bytes.size(); ++c) {
    const auto wanted = static_cast<int64_t>(share * static_cast<double>(n_experts[c]));
    while (plan.n_slots[c] < std::min(wanted, n_experts[c]) && plan.bytes + slot_bytes[c] <= budget) {
      ++plan.n_slots[c];
      plan.bytes += slot_bytes[c];
    }
  }
  for (bool grew = true; grew;) {  // the rest: a slot at a time to the class that has least of its experts
    grew = false;
    size_t best = slot_bytes.size();
    for (size_t c = 0; c < slot_bytes.size(); ++c) {
      if (plan.n_slots[c] >= n_experts[c] || plan.bytes + slot_bytes[c] > budget) continue;
      if (best == slot_bytes.size() || plan.n_slots[c] * n_experts[best] < plan.n_slots[best] * n_experts[c]) best = c;
    }
    if (best == slot_bytes.size()) break;
    ++plan.n_slots[best];
    plan.bytes += slot_bytes[best];
    grew = true;
  }
  return plan;
}

}  // namespace expertree
