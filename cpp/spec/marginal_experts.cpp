#include "cpp/spec/marginal_experts.h"

#include <algorithm>

namespace expertree {

void MarginalExperts::reset(const TokenTree& tree, const ExpertSets& sets, bool start_with_root) {
  const auto n_nodes = static_cast<size_t>(tree.size());
  const size_t n_keys = static_cast<size_t>(sets.n_layers) * static_cast<size_t>(sets.n_experts);
  own_stride_ = static_cast<size_t>(sets.n_layers) * static_cast<size_t>(sets.n_used);
  n_words_ = (n_nodes + 63) / 64;
  own_.resize(n_nodes * own_stride_);
  n_own_.assign(n_nodes, 0);
  holders_.assign(n_keys * n_words_, 0);
  distinct_.clear();
  distinct_begin_.assign(1, 0);
  for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
    reset_layer(tree, sets, layer, start_with_root);
    distinct_begin_.push_back(static_cast<int32_t>(distinct_.size()));
  }
}

void MarginalExperts::reset_layer(const TokenTree& tree, const ExpertSets& sets, int32_t layer, bool start_with_root) {
  const auto n_nodes = static_cast<size_t>(tree.size());
  const size_t n_words = (static_cast<size_t>(sets.n_experts) + 63) / 64;
  on_path_.assign((1 + n_nodes) * n_words, 0);
  seen_.assign(n_words, 0);
  const auto see = [&](int32_t expert) {
    const uint64_t bit = uint64_t{1} << (expert & 63);
    uint64_t& word = seen_[static_cast<size_t>(expert) / 64];
    if ((word & bit) == 0) distinct_.push_back(expert);
    word |= bit;
  };
  for (const int32_t expert : sets.of(0, layer)) {
    see(expert);
    if (start_with_root) on_path_[static_cast<size_t>(expert) / 64] |= uint64_t{1} << (expert & 63);
  }
  const int32_t first_key = layer * sets.n_experts;
  for (size_t v = 0; v < n_nodes; ++v) {
    uint64_t* path = on_path_.data() + (1 + v) * n_words;
    std::copy_n(on_path_.data() + static_cast<size_t>(tree.parents[v] + 1) * n_words, n_words, path);
    int32_t* own = own_.data() + v * own_stride_;
    for (const int32_t expert : sets.of(static_cast<int64_t>(v) + 1, layer)) {
      const uint64_t bit = uint64_t{1} << (expert & 63);
      uint64_t& word = path[static_cast<size_t>(expert) / 64];
      if ((word & bit) != 0) continue;
      word |= bit;
      see(expert);
      const int32_t key = first_key + expert;
      own[n_own_[v]++] = key;
      holders_[static_cast<size_t>(key) * n_words_ + v / 64] |= uint64_t{1} << (v % 64);
    }
  }
}

}  // namespace expertree
