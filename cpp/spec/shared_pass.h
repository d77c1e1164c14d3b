// The trees of several sequences in one pass: an expert is paid for once, whichever of them use it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/step_cost.h"

namespace expertree {

// The rows of one sequence: the root and some nodes of its tree.
struct SharedRows {
  const ExpertSets* sets;  // of the root and the nodes; empty: not known
  std::span<const int32_t> nodes;
  double tokens;         // that they are expected to bring
  double draft_seconds;  // of the sequence's drafter
};

class SharedPass {
 public:
  void add(const SharedRows& rows);

  int32_t n_sequences() const { return n_sequences_; }
  int64_t n_rows() const { return n_rows_; }
  double tokens() const { return tokens_; }
  double draft_seconds() const { return draft_seconds_; }
  // Of those whose sets are known.
  int32_t n_layers() const { return n_layers_; }
  int32_t n_experts() const { return n_experts_; }
  int32_t rows_of(int32_t layer, int32_t expert) const {
    return layer < n_layers_ ? rows_of_[static_cast<size_t>(layer * n_experts_ + expert)] : 0;
  }

 private:
  int32_t n_sequences_ = 0;
  int64_t n_rows_ = 0;
  double tokens_ = 0.0;
  double draft_seconds_ = 0.0;
  int32_t n_layers_ = 0;
  int32_t n_experts_ = 0;
  std::vector<int32_t> rows_of_;  // [n_layers][n_experts]
};

// What a tree costs in a pass that holds `others` already. Both are read when asked for prices, and outlive this.
class SharedCost final : public StepCost {
 public:
  SharedCost(const StepCost& alone, const SharedPass& others);

  double base_seconds(int64_t n_rows) const override { return alone_.base_seconds(n_rows + others_.n_rows()); }
  double iteration_seconds(int64_t n_rows) const override {
    return alone_.iteration_seconds(n_rows + others_.n_rows());
  }
  double run_seconds(int32_t layer, int32_t expert, int64_t n_rows) const override;
  double read_seconds(int32_t layer, int32_t expert) const override;
  void expert_prices(int32_t layer, std::span<const int32_t> experts, ExpertPrice* prices) const override;
  double draft_seconds() const override { return alone_.draft_seconds() + others_.draft_seconds(); }
  double other_tokens() const override { return others_.tokens(); }
  LayerSeconds other_seconds(int32_t layer) const override;
  bool others_use(int32_t layer, int32_t expert) const override { return others_.rows_of(layer, expert) > 0; }
  double plain_seconds() const override;
  double mean_expert_seconds(int32_t n_layers, int32_t n_used) const override {
    return alone_.mean_expert_seconds(n_layers, n_used);
  }

 private:
  const StepCost& alone_;
  const SharedPass& others_;
  std::vector<LayerSeconds> layers_;  // of the others' experts
};

}  // namespace expertree
