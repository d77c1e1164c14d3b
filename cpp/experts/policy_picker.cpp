#include "cpp/experts/policy_picker.h"

#include <algorithm>

namespace expertree {
namespace {

// A replay looks through all slots for each miss, so it runs on a sample: few layers with their share of the slots.
constexpr int32_t kSampledLayers = 6;
constexpr int64_t kFirstSteps = 48;
constexpr int64_t kMaxSteps = 192;
constexpr double kClearlyBetter = 0.01;  // of all uses

}  // namespace

PolicyPicker::PolicyPicker(std::vector<std::string> names, const ExpertCache::Shape& shape, std::vector<float> profile)
    : names_(std::move(names)), n_steps_wanted_(kFirstSteps) {
  const int32_t n_sampled = std::min(kSampledLayers, shape.n_layers);
  std::vector<int64_t> n_layers(shape.n_slots.size(), 0);
  std::vector<int64_t> n_chosen(shape.n_slots.size(), 0);
  for (const int32_t c : shape.class_of_layer) ++n_layers[static_cast<size_t>(c)];
  shape_ = {n_sampled, shape.n_experts, {}, {}};
  for (int32_t i = 0; i < n_sampled; ++i) {
    const int32_t layer = i * shape.n_layers / n_sampled;
    const int32_t c = shape.class_of_layer[static_cast<size_t>(layer)];
    sampled_.push_back(layer);
    shape_.class_of_layer.push_back(c);
    ++n_chosen[static_cast<size_t>(c)];
    if (profile.empty()) continue;
    const auto begin = profile.begin() + layer * static_cast<int64_t>(shape.n_experts);
    profile_.insert(profile_.end(), begin, begin + shape.n_experts);
  }
  for (size_t c = 0; c < n_layers.size(); ++c) {
    shape_.n_slots.push_back(std::max<int64_t>(1, shape.n_slots[c] * n_chosen[c] / std::max<int64_t>(1, n_layers[c])));
  }
  trace_ = std::make_unique<RoutingTrace>(n_sampled, shape.n_experts);
}

void PolicyPicker::record(int32_t layer, std::span<const int32_t> experts) {
  if (layer != sampled_[next_layer_]) return;
  trace_->add(experts);
  next_layer_ = (next_layer_ + 1) % sampled_.size();
}

size_t PolicyPicker::pick(size_t active) {
  if (next_layer_ != 0 || trace_->n_steps() < n_steps_wanted_) return active;
  std::vector<int64_t> hits;
  int64_t n_uses = 0;
  for (const std::string& name : names_) {
    const SimulationResult result = simulate_cache(
        shape_, name, {shape_.n_layers, shape_.n_experts, profile_, nullptr, nullptr}, *trace_, n_steps_wanted_ / 4);
    hits.push_back(result.n_hits);
    n_uses = result.n_uses;
  }
  const auto best = static_cast<size_t>(std::max_element(hits.begin(), hits.end()) - hits.begin());
  trace_ = std::make_unique<RoutingTrace>(shape_.n_layers, shape_.n_experts);
  n_steps_wanted_ = std::min(kMaxSteps, n_steps_wanted_ * 2);
  const bool is_better = static_cast<double>(hits[best] - hits[active]) > kClearlyBetter * static_cast<double>(n_uses);
  return is_better ? best : active;
}

}  // namespace expertree
