// The drafting side of one session: its drafter, predictor and selector, kept in step with what the session has kept.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpp/experts/plain_cache.h"
#include "cpp/model/model.h"
#include "cpp/sample/sampler.h"
#include "cpp/spec/drafter.h"
#include "cpp/spec/measured_cost.h"
#include "cpp/spec/predictor.h"
#include "cpp/spec/selector.h"
#include "cpp/spec/shared_pass.h"

namespace expertree {

struct StepRequest {
  int64_t max_tokens = std::numeric_limits<int64_t>::max();  // at least 1
  std::span<const int32_t> end_tokens;                       // a step ends after one of these
};

// What one step did. Without a drafter: tokens, n_rows and seconds alone.
struct StepRecord {
  std::vector<int32_t> tokens;  // appended to the session: those of the accepted nodes, and one more
  TokenTree tree;
  ExpertSets predicted;           // of the root and the tree's nodes; empty: not known
  std::vector<int32_t> selected;  // nodes that were verified
  std::vector<int32_t> accepted;  // nodes of the accepted path, in order
  int64_t n_rows = 0;             // run through the model; 0: the last token had been run already
  int64_t n_sequences = 1;        // that had rows in the pass
  int64_t n_pass_rows = 0;        // of all of them
  int64_t n_pass_experts = 0;
  double predicted_seconds = 0.0;  // of verifying
  double draft_seconds = 0.0;      // proposing, and learning from what was accepted
  double select_seconds = 0.0;     // predicting experts and selecting nodes
  double verify_seconds = 0.0;     // the forward pass, sampling, and keeping the path
  // Experts of all layers that the rows used, and what the pager did meanwhile; the latter counts all sequences of the
  // pass, and another session's step at the same time, too.
  int64_t n_experts = 0;
  int64_t expert_hits = 0;
  int64_t expert_misses = 0;  // those whose reading had begun included
  uint64_t bytes_read = 0;
  double wait_seconds = 0.0;  // for reads
  double plain_misses = 0.0;  // of decoding the kept tokens one by one
};

// What a pass came to, as one of its sequences sees it.
struct PassRecord {
  int64_t n_sequences = 1;
  int64_t n_rows = 0;  // of all sequences, as the next three
  int64_t n_experts = 0;  // of all layers, each once
  int64_t n_expert_rows = 0;  // rows times experts per row
  PagerStats before, after;
  double share = 1.0;  // of running the pass that this sequence answers for
  double misses = 0.0;  // experts that were not in memory before it: this sequence's share of them
  double kept_misses = 0.0;  // the same of the rows alone that it keeps
  double all_misses = 0.0;  // of all sequences
  bool is_typical = true;  // false: its time says nothing about others
};

class Speculation {
 public:
  // Throws kInvalidRequest for limits out of range and for features that the model does not have.
  Speculation(std::shared_ptr<Model> model, std::unique_ptr<Drafter> drafter, std::unique_ptr<Selector> selector,
              std::unique_ptr<Predictor> predictor, const DraftLimits& limits);

  bool needs_features() const { return !features_.empty() || predictor_wants_hidden(); }
  MeasuredCost& cost() { return cost_; }
  Selector& selector() { return *selector_; }
  // False: what is verified is not the target's own output.
  bool lossless() const { return selector_->lossless(); }
  // Of a pass over a tree; see ForwardRequest.
  int64_t most_experts() const { return selector_->most_experts(); }

  // Of the drafter: weights, which other sessions may share, and its own state.
  uint64_t memory_bytes() const { return drafter_->memory_bytes(); }

  // What a forward pass is to record for observe().
  void ask(ForwardRequest* request) const;

  // Positions that the drafter has seen, but for those forgotten since.
  int64_t n_observed() const { return n_observed_; }
  // The session no longer holds the positions from `length` on. The drafter is told when it is next needed.
  void forget(int64_t length) noexcept;
  // The next kept positions, without features; only while needs_features() is false.
  void observe(std::span<const int32_t> tokens);
  // The next kept positions: the tokens of `rows` of a batch, with what its forward pass recorded.
  void observe(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows);

  // A step, in this order. Drafts at most `max_depth` deep below the last token of `history`; `check_stop` may throw.
  void draft(std::span<const int32_t> history, int64_t max_depth, Sampler& sampler,
             const std::function<void()>& check_stop, StepRecord* record);
  // Which experts the root and the tree are expected to use.
  void predict(int32_t root_token, StepRecord* record);
  // Which nodes are worth their cost in a pass that holds `others`. May be asked again for other ones where
  // may_choose_again().
  void choose(const SharedPass& others, StepRecord* record);
  bool may_choose_again() const { return selector_->may_choose_again(); }
  SharedRows shared_rows(const StepRecord& record) const;
  // Of a pass with the nodes that were chosen; 0 where that is not known.
  double pass_seconds(const SharedPass& others, const StepRecord& record) const;
  // The pager hears what the step is expected to use.
  void hint_experts(const StepRecord& record) const;
  // After the pass, however many nodes it verified: the kept rows of its batch, and how it went.
  void learn(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows,
             const PassRecord& pass, StepRecord* record);

 private:
  bool predictor_wants_hidden() const { return predictor_ != nullptr && predictor_->wants_hidden(); }
  void judge_prediction(const ExpertSets& predicted, const ForwardResult& result, int64_t n_rows);
  void align();
  void observe_experts(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows);
  void begin_plain();

  std::shared_ptr<Model> model_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<Predictor> predictor_;  // nullptr: nothing is predicted
  MeasuredCost cost_;
  double precision_ = 0.0;  // of what was predicted for the last tokens of steps, lately
  DraftLimits limits_;
  FeatureRequest features_;
  std::optional<PlainCache> plain_;  // where experts do not all fit
  int64_t n_plain_ = -1;  // positions that it has seen
  int64_t n_observed_ = 0;
  int64_t n_drafter_ = 0;  // positions that the drafter itself counts; more than n_observed_ until align()
};

}  // namespace expertree
