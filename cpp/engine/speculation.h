// The drafting side of one session: its drafter, predictor and selector, kept in step with what the session has kept.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "cpp/model/model.h"
#include "cpp/sample/sampler.h"
#include "cpp/spec/drafter.h"
#include "cpp/spec/measured_cost.h"
#include "cpp/spec/predictor.h"
#include "cpp/spec/selector.h"

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
  double predicted_seconds = 0.0;  // of verifying
  double draft_seconds = 0.0;      // proposing, and learning from what was accepted
  double select_seconds = 0.0;     // predicting experts and selecting nodes
  double verify_seconds = 0.0;     // the forward pass, sampling, and keeping the path
  // Experts of all layers that the rows used, and what the pager did meanwhile; the latter counts another session's
  // step at the same time, too.
  int64_t n_experts = 0;
  int64_t expert_hits = 0;
  int64_t expert_misses = 0;  // those whose reading had begun included
  uint64_t bytes_read = 0;
  double wait_seconds = 0.0;  // for reads
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

  // Drafts at most `max_depth` deep below the last token of `history`, predicts and selects; fills in the record.
  void propose(std::span<const int32_t> history, int64_t max_depth, Sampler& sampler, StepRecorder* recorder,
               StepRecord* record);
  // After the step, however many nodes it verified: the kept rows of its batch, and how it went.
  void learn(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows,
             StepRecorder* recorder, StepRecord* record);

 private:
  bool predictor_wants_hidden() const { return predictor_ != nullptr && predictor_->wants_hidden(); }
  PagerStats pager_stats() const;
  void hint_experts(const StepRecord& record) const;
  void judge_prediction(const ExpertSets& predicted, const ForwardResult& result, int64_t n_rows);
  void draft(std::span<const int32_t> history, int64_t max_depth, Sampler& sampler, StepRecord* record);
  void align();
  void observe_experts(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows);
  int64_t count_experts(const TokenBatch& batch, const ForwardResult& result) const;

  std::shared_ptr<Model> model_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<Predictor> predictor_;  // nullptr: nothing is predicted
  MeasuredCost cost_;
  double precision_ = 0.0;  // of what was predicted for the last tokens of steps, lately
  DraftLimits limits_;
  FeatureRequest features_;
  int64_t n_observed_ = 0;
  PagerStats before_;      // when the step's forward pass began
  int64_t n_drafter_ = 0;  // positions that the drafter itself counts; more than n_observed_ until align()
};

}  // namespace expertree
