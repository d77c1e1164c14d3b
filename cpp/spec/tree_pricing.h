// The time of verifying part of a tree, kept up to date while the part grows: what `residency` chooses by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/marginal_experts.h"
#include "cpp/spec/step_cost.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

// base(rows) + sum over layers of max(reading, running) over the union of experts, as step_seconds() has it. Single
// precision: errors of 1e-6 of a step change no choice that matters. Memory is kept between trees.
class TreePricing {
 public:
  // blind: all experts cost the mean of the tree's. `sets` may be empty: then only the number of rows counts.
  void reset(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost, bool blind);

  double seconds() const { return base_[static_cast<size_t>(n_rows_)] + expert_seconds_; }
  // Of adding a node with those of its ancestors that are outside. Asked for in index order for all nodes outside:
  // a node's answer builds on its parent's.
  double path_seconds(int32_t node);
  bool has(int32_t node) const { return inside_[static_cast<size_t>(node)] != 0; }
  // The parent must be inside.
  void add(int32_t node);

  // Starts again with exactly these nodes, for taking leaves away.
  void set_nodes(std::span<const int32_t> nodes);
  // What would be left without a leaf that is inside.
  double seconds_without(int32_t leaf) const;
  void remove(int32_t leaf);

 private:
  static constexpr int32_t kLanes = 8;

  void fetch_prices(const StepCost& cost, bool blind);
  void fill_marginals();
  void count_rows(int32_t node, int32_t sign);
  double total(const float* read, const float* run) const;

  const TokenTree* tree_ = nullptr;
  const ExpertSets* sets_ = nullptr;
  MarginalExperts experts_;
  size_t stride_ = 0;                // layers, rounded up to whole lanes
  std::vector<double> base_;         // of [rows], 0 unused
  std::vector<ExpertPrice> prices_;  // [n_layers * n_experts], of those that the tree uses
  std::vector<ExpertPrice> fetched_;
  std::vector<float> node_read_;     // [n_nodes][stride]: what the node would add itself
  std::vector<float> node_run_;
  std::vector<float> path_read_;     // [n_nodes][stride]: with its ancestors outside
  std::vector<float> path_run_;
  std::vector<int32_t> path_nodes_;  // [n_nodes]
  std::vector<float> other_read_;    // [stride], of other sequences in the pass
  std::vector<float> other_run_;
  std::vector<float> read_;          // [stride], of these, the nodes inside and the root
  std::vector<float> run_;
  std::vector<int32_t> rows_of_;     // [n_layers * n_experts], after set_nodes()
  std::vector<uint8_t> inside_;
  int64_t n_rows_ = 1;
  double expert_seconds_ = 0.0;
};

}  // namespace expertree
