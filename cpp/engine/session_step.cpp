#include "cpp/engine/session_step.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

namespace expertree {

Busy::Busy(std::atomic<bool>& flag) : flag_(flag) {
  if (!flag_.exchange(true)) return;
  throw Error(ErrorCode::kInvalidRequest,
              "the session is already running a call from another thread; wait for it, or use a session per thread");
}

SessionStep::SessionStep(Session& session, const StepRequest& request, CallProfile& profile)
    : session_(session),
      busy_(session.busy_),
      request_(request),
      profile_(profile),
      part_(profile.attach(&session.recorders_, session.id_, std::ssize(session.tokens_))),
      start_us_(now_us()) {}

template <typename Phase>
void SessionStep::guarded(const Phase& phase) noexcept {
  if (error_) return;
  try {
    phase();
  } catch (...) {
    fail(std::current_exception());
  }
}

void SessionStep::fail(std::exception_ptr error) noexcept {
  error_ = std::move(error);
  runs_ = false;
  is_done_ = false;
}

void SessionStep::begin() noexcept {
  guarded([this] {
    session_.require_nothing_pending();
    const auto n_tokens = static_cast<int64_t>(session_.tokens_.size());
    if (n_tokens == 0) {
      throw Error(ErrorCode::kInvalidRequest, "nothing to continue: the session has no tokens; call prefill first");
    }
    if (request_.max_tokens < 1) {
      throw Error(ErrorCode::kInvalidRequest,
                  "a step of " + std::to_string(request_.max_tokens) + " tokens; expected at least 1");
    }
    if (n_tokens > session_.n_ctx()) return;
    session_.catch_up();
    if (session_.state_.n_committed() == n_tokens) {
      if (session_.can_sample()) return sample();
      session_.run_last_again();
      if (speculation() != nullptr) speculation()->forget(session_.state_.n_committed());
    }
    session_.run_up_to(n_tokens - 1);
    if (speculation() != nullptr) {
      const ZoneScope zone(recorders().timeline, Zone::kDraft);
      const int64_t room = std::min(request_.max_tokens - 1, session_.n_ctx() - n_tokens);
      const auto check_stop = [this] { session_.check_stop(true); };
      speculation()->draft(session_.tokens_, room, session_.sampler_, check_stop, &record_);
    }
    runs_ = true;
  });
}

// The last token has been run already.
void SessionStep::sample() {
  const ZoneScope zone(recorders().timeline, Zone::kSample);
  const int64_t start = now_us();
  const auto n_tokens = static_cast<int64_t>(session_.tokens_.size());
  const int32_t token =
      session_.sampler_.sample(session_.last_logits_.row(), n_tokens, TokenHistory{session_.tokens_, {}});
  record_.tokens = {token};
  record_.verify_seconds = static_cast<double>(now_us() - start) * 1e-6;
  append();
}

void SessionStep::predict() noexcept {
  const ZoneScope zone(recorders().timeline, Zone::kPredict);
  guarded([this] {
    if (speculation() != nullptr) speculation()->predict(session_.tokens_.back(), &record_);
  });
}

void SessionStep::choose(const SharedPass& others) noexcept {
  const ZoneScope zone(recorders().timeline, Zone::kSelect);
  guarded([&] { speculation()->choose(others, &record_); });
}

SharedRows SessionStep::shared_rows() const {
  if (speculation() != nullptr) return speculation()->shared_rows(record_);
  return {&record_.predicted, {}, 1.0, 0.0};
}

void SessionStep::settle(const SharedPass& others, bool known) noexcept {
  const ZoneScope zone(recorders().timeline, Zone::kSelect);
  guarded([&] {
    if (speculation() == nullptr || record_.tree.size() == 0) return;
    speculation()->hint_experts(record_);
    if (known) record_.predicted_seconds = speculation()->pass_seconds(others, record_);
  });
}

std::optional<SequencePass> SessionStep::prepare(bool routing, bool alone) noexcept {
  guarded([&] {
    batch_ = verification_batch(session_.tokens_.back(), record_.tree, record_.selected, session_.sampler_.n_vocab());
    record_.n_rows = batch_.size();
    wanted_ = {};
    wanted_.n_best = session_.sampler_.n_deciding();
    if (speculation() != nullptr) {
      speculation()->ask(&wanted_);
      wanted_.most_experts = speculation()->most_experts();
      wanted_.provisional = true;
    }
    wanted_.routing = wanted_.routing || routing;
    wanted_.recorders = recorders();
    if (recorders().rows != nullptr) recorders().rows->mark();
    wanted_.check_stop = [this, alone] { session_.check_stop(alone); };
    session_.state_.begin(batch_, speculation() != nullptr ? Keep::kAnyPath : Keep::kAll);
  });
  if (error_) return std::nullopt;
  return SequencePass{&session_.state_, &batch_, &wanted_, &session_.verified_};
}

void SessionStep::roll_back() noexcept {
  session_.state_.rollback();
  if (recorders().rows != nullptr) recorders().rows->drop();
}

RowLogits SessionStep::verified_logits() const {
  const ForwardResult& result = session_.verified_;
  if (result.n_best == 0) return {result.logits.data(), session_.sampler_.n_vocab()};
  return {result.logits.data(), result.n_best, result.best_ids.data()};
}

void SessionStep::verify() noexcept {
  const ZoneScope zone(recorders().timeline, Zone::kSample);
  guarded([this] {
    try {
      path_ = expertree::verify(record_.tree, record_.selected, verified_logits(), session_.tokens_,
                                {request_.max_tokens, request_.end_tokens}, session_.sampler_);
    } catch (...) {
      roll_back();
      throw;
    }
  });
}

void SessionStep::finish(const PassRecord& pass, int64_t pass_us) noexcept {
  const ZoneScope zone(recorders().timeline, Zone::kCommit);
  guarded([&] {
    const int64_t start = now_us();
    const int64_t n_before = session_.state_.n_committed();
    session_.state_.commit(path_.rows);
    const RowLogits last = verified_logits().from(path_.rows.back());
    Session::LastLogits kept{{last.logits, last.logits + last.width}, {}};
    if (last.ids != nullptr) kept.ids.assign(last.ids, last.ids + last.width);
    const Session::LastLogits logits_before = std::exchange(session_.last_logits_, std::move(kept));
    record_.tokens = std::move(path_.tokens);
    record_.accepted = std::move(path_.nodes);
    record_.n_sequences = pass.n_sequences;
    record_.n_pass_rows = pass.n_rows;
    record_.n_pass_experts = pass.n_experts;
    record_.verify_seconds = static_cast<double>(pass_us + now_us() - start) * 1e-6;
    try {
      if (speculation() != nullptr) {
        const ZoneScope learning(recorders().timeline, Zone::kDraft);
        speculation()->learn(batch_, session_.verified_, path_.rows, pass, &record_);
      }
      append();
    } catch (...) {
      session_.state_.truncate(n_before);
      if (speculation() != nullptr) speculation()->forget(session_.state_.n_committed());
      session_.last_logits_ = logits_before;
      throw;
    }
  });
}

void SessionStep::append() {
  const StepKind kind = speculation() == nullptr ? StepKind::kDecode : StepKind::kSpeculate;
  profile_.finish(part_, kind, record_.tokens, session_.state_, &record_);
  const std::lock_guard<std::mutex> lock(session_.shown_mutex_);
  session_.tokens_.insert(session_.tokens_.end(), record_.tokens.begin(), record_.tokens.end());
  SessionStats& stats = session_.stats_;
  stats.decode_us += now_us() - start_us_;
  stats.n_decode_tokens += std::ssize(record_.tokens);
  ++stats.n_steps;
  stats.n_drafted += record_.tree.size();
  stats.n_selected += std::ssize(record_.selected);
  stats.n_accepted += std::ssize(record_.accepted);
  stats.draft_us += static_cast<int64_t>(record_.draft_seconds * 1e6);
  stats.select_us += static_cast<int64_t>(record_.select_seconds * 1e6);
  if (speculation() != nullptr) stats.drafter_bytes = speculation()->memory_bytes();
  is_done_ = true;
}

std::optional<StepRecord> SessionStep::take_record() {
  if (!is_done_) return std::nullopt;
  return std::move(record_);
}

}  // namespace expertree
