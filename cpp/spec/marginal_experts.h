// What each node of a tree would add to a growing union of experts, kept up to date at the cost of one update per
// expert and node that share it, whatever the order of growth.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

// An expert's key is layer * n_experts + expert. A node's own keys are those of its set that no ancestor's set has
// (nor the root's, when the union starts with it); so a path adds the disjoint union of its nodes' own keys, less what
// the union has already. Memory is kept between trees.
class MarginalExperts {
 public:
  // `sets` must not be empty and outlive the use.
  void reset(const TokenTree& tree, const ExpertSets& sets, bool start_with_root);

  std::span<const int32_t> own(int32_t node) const {
    const auto v = static_cast<size_t>(node);
    return std::span(own_).subspan(v * own_stride_, static_cast<size_t>(n_own_[v]));
  }
  // The experts of a layer that the root or any node uses, each once, in order of first use.
  std::span<const int32_t> distinct(int32_t layer) const {
    const auto l = static_cast<size_t>(layer);
    return std::span(distinct_).subspan(static_cast<size_t>(distinct_begin_[l]),
                                        static_cast<size_t>(distinct_begin_[l + 1] - distinct_begin_[l]));
  }

  // Adds a node's set to the union. Its ancestors must be there already, or be added later with it in mind.
  // lost(u, key): the key, new to the union, no longer counts for node u; called for every u that has it as its own.
  template <typename Lost>
  void add(int32_t node, const Lost& lost) {
    for (const int32_t key : own(node)) {
      uint64_t* holders = holders_.data() + static_cast<size_t>(key) * n_words_;
      for (size_t w = 0; w < n_words_; ++w) {
        for (uint64_t left = holders[w]; left != 0; left &= left - 1) {
          lost(static_cast<int32_t>(w * 64) + std::countr_zero(left), key);
        }
        holders[w] = 0;
      }
    }
  }

 private:
  void reset_layer(const TokenTree& tree, const ExpertSets& sets, int32_t layer, bool start_with_root);

  size_t own_stride_ = 0;
  size_t n_words_ = 0;                // of a set of nodes
  std::vector<int32_t> own_;          // [n_nodes][own_stride_]
  std::vector<int32_t> n_own_;        // [n_nodes]
  std::vector<uint64_t>
      holders_;     // [n_layers * n_experts][n_words_]: nodes with this own key; none once it is in the union
  std::vector<uint64_t>
      on_path_;     // [1 + n_nodes][words of n_experts]: experts of a node and its ancestors in one layer
  std::vector<uint64_t> seen_;        // [words of n_experts]
  std::vector<int32_t> distinct_;
  std::vector<int32_t> distinct_begin_;  // [n_layers + 1]
};

}  // namespace expertree
