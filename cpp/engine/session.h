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

#include "cpp/model/model.h"
#include "cpp/model/sequence_state.h"
#include "cpp/sample/sampler.h"

namespace expertree {

struct SessionStats {
  int64_t n_prefill_tokens = 0;
  int64_t n_decode_tokens = 0;  // sampled
  int64_t prefill_us = 0;
  int64_t decode_us = 0;
};

class Session {
 public:
  // n_ctx: positions that the sequence may grow to, at least 1.
  Session(std::shared_ptr<Model> model, int64_t n_ctx, const SamplerOptions& options);

  Model& model() const { return *model_; }
  int64_t n_ctx() const { return state_.n_ctx(); }
  // All tokens so far, in order. The last one may not have been run yet (a token just sampled).
  // These three may be asked from any thread, while a call runs, too.
  std::vector<int32_t> tokens() const;
  int64_t n_tokens() const;
  SessionStats stats() const;

  // Appends tokens. Throws kInvalidRequest when they do not fit the context or are no tokens of this model.
  // On any error, and when cancelled, the session is as it was.
  void prefill(std::span<const int32_t> tokens);

  // Samples the next token and appends it. nullopt: the context is full.
  std::optional<int32_t> step();

  // Runs a tree on top of all tokens so far; its rows stay pending until commit or rollback. Logits of every row.
  ForwardResult evaluate(std::span<const int32_t> tokens, std::span<const int32_t> parents, bool routing);
  void commit(std::span<const int32_t> path);
  void rollback();

  // Forgets all tokens from `length` on.
  void truncate(int64_t length);
  // An independent session with the same tokens and state.
  std::unique_ptr<Session> branch() const;
  void set_sampler(const SamplerOptions& options);

  // Makes the running call, or else the next one, throw kCancelled between two layers.
  void cancel() { cancelled_.store(true); }
  // Also asked between layers, on the calling thread; throws to stop (Python's Ctrl-C).
  void set_interrupt_check(std::function<void()> check) { interrupt_check_ = std::move(check); }

 private:
  ForwardResult forward(const TokenBatch& batch, LogitRows logits, bool routing);
  void append(std::span<const int32_t> tokens, LogitRows logits);
  void run_last_token();
  void require_nothing_pending() const;
  void drop_pending();

  std::shared_ptr<Model> model_;
  SequenceState state_;
  SamplerOptions sampler_options_;
  Sampler sampler_;
  // As many as state_ has committed, or one more: a last token that has not been run yet.
  std::vector<int32_t> tokens_;
  SessionStats stats_;
  mutable std::mutex shown_mutex_;  // held to change tokens_ and stats_, and to read them outside a call
  std::vector<float> last_logits_;  // [n_vocab] of the last token, when that has been run
  std::vector<int32_t> pending_;    // tokens of pending rows
  std::vector<float> pending_logits_;
  std::atomic<bool> cancelled_{false};
  mutable std::atomic<bool> busy_{false};
  std::function<void()> interrupt_check_;
};

}  // namespace expertree
