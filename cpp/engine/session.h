// One conversation with a model: its tokens, its state, its sampler. One call at a time (a second thread's call throws
// kInvalidRequest); cancel() from anywhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "cpp/engine/speculation.h"
#include "cpp/model/model.h"
#include "cpp/model/sequence_state.h"
#include "cpp/sample/sampler.h"
#include "cpp/spec/verifier.h"

namespace expertree {

struct SessionStats {
  int64_t n_prefill_tokens = 0;
  int64_t n_decode_tokens = 0;  // sampled
  int64_t n_steps = 0;
  int64_t n_drafted = 0;   // nodes of all trees
  int64_t n_selected = 0;  // of these, run through the model
  int64_t n_accepted = 0;  // of these, kept
  int64_t prefill_us = 0;
  int64_t decode_us = 0;  // drafting and selecting included
  int64_t draft_us = 0;
  int64_t select_us = 0;
  uint64_t drafter_bytes = 0;  // weights of the drafter, which other sessions may share, and its state
};

class SessionStep;

class Session {
 public:
  // n_ctx: positions that the sequence may grow to, at least 1.
  Session(std::shared_ptr<Model> model, int64_t n_ctx, const SamplerOptions& options);

  Model& model() const { return *model_; }
  const std::shared_ptr<Model>& shared_model() const { return model_; }
  int64_t n_ctx() const { return state_.n_ctx(); }
  // Unique among the model's sessions; profiles call a session by it.
  int64_t id() const { return id_; }
  // All tokens so far, in order. The last one may not have been run yet (a token just sampled).
  // These three may be asked from any thread, while a call runs, too.
  std::vector<int32_t> tokens() const;
  int64_t n_tokens() const;
  SessionStats stats() const;

  // Appends tokens. Throws kInvalidRequest when they do not fit the context or are no tokens of this model.
  // On any error, and when cancelled, the session is as it was.
  void prefill(std::span<const int32_t> tokens);

  // Appends the next token: the sampler's choice. With a drafter a step may give several, the ones that as many plain
  // steps would have given: the last token and the selected nodes of the drafted tree run in one pass. A session whose
  // last token has been run already (after prefill) samples without a pass. nullopt: the context is full.
  // On any error, and when cancelled, the session is as it was.
  std::optional<StepRecord> step(const StepRequest& request = {});
  // From the next step on; what the session holds the drafter learns first. Nullptr for the drafter: plain steps.
  // A predictor may be nullptr.
  void set_speculation(std::unique_ptr<Drafter> drafter, std::unique_ptr<Selector> selector,
                       std::unique_ptr<Predictor> predictor, const DraftLimits& limits);
  bool speculates() const { return speculation_ != nullptr; }
  // False: the drafter's selector changes the text (moespec).
  bool lossless() const { return speculation_ == nullptr || speculation_->lossless(); }
  // What steps were found to cost, for another session on this model. Empty without a drafter.
  CostProfile cost_profile() const;
  void restore_costs(const CostProfile& profile);
  // The same of the selector: for sessions with the same drafter, selector and sampling.
  std::vector<double> selector_state() const;
  void restore_selector(std::span<const double> state);

  // Runs a tree on top of all tokens so far; its rows stay pending until commit or rollback. Logits of every row, and
  // where asked for its experts and the last layer's normalised output.
  ForwardResult evaluate(std::span<const int32_t> tokens, std::span<const int32_t> parents, bool routing, bool hidden);
  void commit(std::span<const int32_t> path);
  void rollback();

  // Forgets all tokens from `length` on.
  void truncate(int64_t length);
  // An independent session with the same tokens and state, and no drafter: drafters cannot be copied. Give it one with
  // set_speculation.
  std::unique_ptr<Session> branch() const;
  void set_sampler(const SamplerOptions& options);

  // Makes the running call, or else the next one, throw kCancelled between two layers.
  void cancel() { cancelled_.store(true); }
  // Also asked between layers, on the calling thread; throws to stop (Python's Ctrl-C).
  void set_interrupt_check(std::function<void()> check) { interrupt_check_ = std::move(check); }

 private:
  friend class SessionStep;
  // What a call that runs makes check_stop of; `consume`: the call that is cancelled is this one.
  void check_stop(bool consume);
  void forward(const TokenBatch& batch, Keep keep, ForwardRequest request, ForwardResult* result);
  void run_rows(std::span<const int32_t> tokens, LogitRows logits);
  void append(std::span<const int32_t> tokens);
  void run_up_to(int64_t n_tokens);
  void catch_up();
  void require_nothing_pending() const;
  void drop_pending();
  bool can_sample() const;
  void run_last_again();

  std::shared_ptr<Model> model_;
  const int64_t id_;
  SequenceState state_;
  SamplerOptions sampler_options_;
  Sampler sampler_;
  // As many as state_ has committed, or one more: a last token that has not been run yet. Or any number more, to be run
  // again: a drafter wants to see how they run, or recurrent layers had to go back further than was asked.
  std::vector<int32_t> tokens_;
  SessionStats stats_;
  mutable std::mutex shown_mutex_;  // held to change tokens_ and stats_, and to read them outside a call
  // Of the last token, when that has been run: [n_vocab], or the best of them with their ids.
  struct LastLogits {
    std::vector<float> logits;
    std::vector<int32_t> ids;

    RowLogits row() const { return {logits.data(), std::ssize(logits), ids.empty() ? nullptr : ids.data()}; }
  };
  LastLogits last_logits_;
  std::vector<int32_t> pending_;    // tokens of pending rows
  std::vector<float> pending_logits_;
  std::unique_ptr<Speculation> speculation_;  // nullptr: plain steps
  ForwardResult verified_;                    // of the last speculative step; its memory serves the next one
  CallRecorders recorders_;  // of the running call
  std::atomic<bool> cancelled_{false};
  mutable std::atomic<bool> busy_{false};
  std::function<void()> interrupt_check_;
};

}  // namespace expertree
