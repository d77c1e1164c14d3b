// One session's part of a step, phase by phase, so that several sessions can go through a phase together. What goes
// wrong in it is kept: the others go on, and the session is as it was.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>

#include "cpp/engine/call_profile.h"
#include "cpp/engine/session.h"

namespace expertree {

// A second thread that calls in meanwhile is refused instead of corrupting the session.
class Busy {
 public:
  explicit Busy(std::atomic<bool>& flag);
  ~Busy() { flag_.store(false); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic<bool>& flag_;
};

class SessionStep {
 public:
  // Throws kInvalidRequest when the session is busy. What the request refers to must stay, and so must the profile.
  SessionStep(Session& session, const StepRequest& request, CallProfile& profile);
  ~SessionStep() { profile_.detach(part_); }
  SessionStep(const SessionStep&) = delete;
  SessionStep& operator=(const SessionStep&) = delete;

  // Runs what must be run before, and drafts; a session that needs no pass, because its last token has been run already,
  // samples. Nothing but the session itself is looked at.
  void begin() noexcept;
  // Has rows for the pass.
  bool runs() const { return runs_; }
  void predict() noexcept;
  // Selects nodes for a pass that holds `others` already.
  void choose(const SharedPass& others) noexcept;
  bool may_choose_again() const { return speculation() != nullptr && speculation()->may_choose_again(); }
  SharedRows shared_rows() const;
  // Nothing more is chosen: the pass holds `others` beside this session's rows; `known`: what all of them use.
  void settle(const SharedPass& others, bool known) noexcept;
  // Takes cells for the rows. What the pass is to do for them; good until finish() or fail(). `routing`: record experts.
  // `alone`: nobody else's rows are in the pass, so that cancel() is for it.
  std::optional<SequencePass> prepare(bool routing, bool alone) noexcept;
  // Walks down the tree, whose logits are there: kept_rows() are known then, and nothing is kept yet.
  void verify() noexcept;
  // Keeps the path and learns from it.
  void finish(const PassRecord& pass, int64_t pass_us) noexcept;
  // Forgets the pending rows, if there are any.
  void roll_back() noexcept;
  void fail(std::exception_ptr error) noexcept;

  const std::exception_ptr& error() const { return error_; }
  // nullopt: an error, or the context is full.
  std::optional<StepRecord> take_record();

  StepRecord& record() { return record_; }
  const ForwardResult& result() const { return session_.verified_; }
  int64_t n_rows() const { return 1 + std::ssize(record_.selected); }
  std::span<const int32_t> kept_rows() const { return path_.rows; }
  Speculation* speculation() const { return session_.speculation_.get(); }

 private:
  CallRecorders& recorders() { return session_.recorders_; }
  template <typename Phase>
  void guarded(const Phase& phase) noexcept;
  void sample();
  RowLogits verified_logits() const;
  void append();

  Session& session_;
  Busy busy_;
  StepRequest request_;
  CallProfile& profile_;
  size_t part_;  // of the profile
  int64_t start_us_;
  bool runs_ = false;
  bool is_done_ = false;
  StepRecord record_;
  TokenBatch batch_;
  ForwardRequest wanted_;
  VerifiedPath path_;
  std::exception_ptr error_;
};

}  // namespace expertree
