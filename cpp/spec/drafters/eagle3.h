// Drafts with an EAGLE-3 head (Li et al., arXiv 2503.01840) and grows the tree as EAGLE-2 does (arXiv 2406.16858).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpp/spec/drafter.h"
#include "cpp/spec/drafters/draft_ranker.h"
#include "cpp/spec/drafters/eagle3_layer.h"
#include "cpp/spec/head_inputs.h"

namespace expertree {

// The state of position i, made from the target's features there, goes with the token at i + 1: together they are entry
// i of the head's KV cache. Entry n - 1 with the root gives the root's children; deeper nodes take the output of their
// parent as state and see, beside the entries, their own ancestors. A depth is one pass over the head's weights.
class Eagle3Drafter final : public Drafter, public HeadInputs {
 public:
  Eagle3Drafter(std::shared_ptr<Model> target, std::shared_ptr<const Eagle3Head> head);

  const char* name() const override { return "eagle3"; }
  FeatureRequest features() const override { return {layer_.head().tap_layers, false}; }
  void observe(const CommittedRows& rows) override;
  void truncate(int64_t length) override;
  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) override;
  HeadInputs* head_inputs() override { return this; }
  uint64_t memory_bytes() const override;

  int64_t n_inputs() const override { return 2 * layer_.n_embd(); }
  bool read_inputs(int32_t root_token, const TokenTree& tree, Activations* out) override;
  int64_t n_state() const override { return layer_.n_embd(); }
  bool read_states(int32_t root_token, const TokenTree& tree, std::vector<float>* out) override;

  // Logits [draft vocabulary] of every expansion of the last draft, root first, with its node in the pool; for tests.
  struct Expansion {
    int32_t token;
    int32_t parent;  // expansion of the parent; -1: the root's own
    std::vector<float> logits;
  };
  void keep_expansions(bool keep) { keep_expansions_ = keep; }
  std::vector<Expansion> expansions() const;

 private:
  // A node that has been run. Slot 0 is the root; slot s lies in cell n_observed - 1 + s.
  struct Slot {
    int32_t token;
    int32_t parent;
    std::vector<int32_t> tail;  // cells of its ancestors below the root, and its own
  };

  int64_t n_observed() const { return std::ssize(tokens_); }
  void make_states();
  void run_entries(int64_t end);
  Eagle3Layer::Row entry(int64_t i, int32_t next_token) const;
  void expand_root(int32_t token);
  void expand_nodes(std::span<const int32_t> frontier, const TokenTree& pool);
  bool has_run(int32_t root_token) const { return !slots_.empty() && slots_[0].token == root_token; }
  // By node of the tree: its slot; -1: not run.
  std::vector<int32_t> slots_of(int32_t root_token, const TokenTree& tree) const;
  const float* output(int32_t slot) const { return outputs_.data() + slot * layer_.n_embd(); }

  std::shared_ptr<Model> target_;
  Eagle3Layer layer_;
  DraftRanker ranker_;
  std::vector<int32_t> tokens_;          // observed
  std::vector<float> pending_features_;  // of the last observed positions, whose states are not made yet
  std::vector<float> states_;            // [positions][n_embd]
  int64_t n_entries_ = 0;                // with keys and values; at most n_observed - 1
  int32_t root_token_ = -1;              // of entry n_observed - 1 when a draft has run it; -1: not run

  std::vector<Slot> slots_;
  std::vector<int32_t> slot_of_;  // by pool node; -1: not run
  std::vector<float> outputs_;    // [slots][n_embd]
  std::vector<float> logits_;     // [rows of a pass][draft vocabulary]
  bool keep_expansions_ = false;
  std::vector<std::vector<float>> kept_logits_;
};

// argument: the head's file.
std::unique_ptr<Drafter> make_eagle3_drafter(const std::string& argument, const std::shared_ptr<Model>& target);

}  // namespace expertree
