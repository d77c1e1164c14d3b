// Which experts a model used, step after step: what policies learn from and are judged by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertree {

// An expert by number: moe_layer * n_experts + expert.
using ExpertKey = int32_t;

class RoutingTrace {
 public:
  RoutingTrace(int32_t n_layers, int32_t n_experts) : n_layers_(n_layers), n_experts_(n_experts) {}

  int32_t n_layers() const { return n_layers_; }
  int32_t n_experts() const { return n_experts_; }
  int64_t n_steps() const { return (static_cast<int64_t>(begin_.size()) - 1) / n_layers_; }

  // Appends the experts (each once) of the next layer; layers come in order, n_layers of them make a step.
  void add(std::span<const int32_t> experts) {
    experts_.insert(experts_.end(), experts.begin(), experts.end());
    begin_.push_back(static_cast<int64_t>(experts_.size()));
  }
  std::span<const int32_t> experts(int64_t step, int32_t layer) const {
    const auto at = static_cast<size_t>(step * n_layers_ + layer);
    return std::span(experts_).subspan(static_cast<size_t>(begin_[at]),
                                       static_cast<size_t>(begin_[at + 1] - begin_[at]));
  }

 private:
  int32_t n_layers_;
  int32_t n_experts_;
  std::vector<int64_t> begin_{0};  // of each (step, layer) in experts_
  std::vector<int32_t> experts_;
};

}  // namespace expertree
