// How soon a layer comes back to its experts: LRU stack distances, which give a cache's hits for every number of slots at
// once. R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace expertree {

// Not thread-safe.
class ReuseMeter {
 public:
  // `n_experts`: of each layer. Nothing was used yet: experts stand in file order, as the background reads them.
  explicit ReuseMeter(const std::vector<int32_t>& n_experts) {
    for (const int32_t n : n_experts) {
      Layer& layer = layers_.emplace_back();
      layer.order.resize(static_cast<size_t>(n));
      std::iota(layer.order.begin(), layer.order.end(), 0);
      layer.weight_at.assign(layer.order.size(), 0.0);
    }
  }

  // A step uses these experts (each once) of the layer. A step weighs the number of steps before it, whatever it uses:
  // the first ones find an order that says little, and a prompt's steps use nearly all.
  void use(int32_t layer_index, std::span<const int32_t> experts) {
    if (experts.empty()) return;
    Layer& layer = layers_[static_cast<size_t>(layer_index)];
    const double weight = static_cast<double>(layer.n_steps++) / static_cast<double>(experts.size());
    used_.assign(layer.order.size(), 0);
    for (const int32_t expert : experts) used_[static_cast<size_t>(expert)] = 1;
    rest_.clear();
    auto front = layer.order.begin();
    for (size_t at = 0; at < layer.order.size(); ++at) {
      const int32_t expert = layer.order[at];
      if (used_[static_cast<size_t>(expert)] == 0) {
        rest_.push_back(expert);
        continue;
      }
      layer.weight_at[at] += weight;
      *front++ = expert;
    }
    std::ranges::copy(rest_, front);
  }

  // The share of the layer's uses whose expert had i others used since; all 0 before the second step.
  std::vector<float> shares(int32_t layer_index) const {
    const std::vector<double>& weight_at = layers_[static_cast<size_t>(layer_index)].weight_at;
    const double sum = std::accumulate(weight_at.begin(), weight_at.end(), 0.0);
    std::vector<float> shares;
    for (const double weight : weight_at) shares.push_back(sum > 0.0 ? static_cast<float>(weight / sum) : 0.0f);
    return shares;
  }

 private:
  struct Layer {
    std::vector<int32_t> order;  // experts, the last used one first
    std::vector<double> weight_at;  // of uses, by their expert's place in the order
    int64_t n_steps = 0;
  };
  std::vector<Layer> layers_;
  std::vector<uint8_t> used_;  // scratch, as the next one
  std::vector<int32_t> rest_;
};

}  // namespace expertree
