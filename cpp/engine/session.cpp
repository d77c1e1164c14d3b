#include "cpp/engine/session.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"
#include "cpp/engine/call_profile.h"
#include "cpp/engine/joint_step.h"
#include "cpp/engine/session_step.h"

namespace expertree {
namespace {

int64_t checked_context(int64_t n_ctx) {
  constexpr int64_t kMaxContext = int64_t{1} << 27;
  if (n_ctx < 1 || n_ctx > kMaxContext) {
    throw Error(ErrorCode::kInvalidRequest,
                "a context of " + std::to_string(n_ctx) + " tokens; expected 1 to " + std::to_string(kMaxContext));
  }
  return n_ctx;
}

}  // namespace

Session::Session(std::shared_ptr<Model> model, int64_t n_ctx, const SamplerOptions& options)
    : model_(std::move(model)),
      id_(model_->next_session_id()),
      state_(model_->new_state(checked_context(n_ctx))),
      sampler_options_(options),
      sampler_(options, model_->hyperparameters().n_vocab) {}

std::vector<int32_t> Session::tokens() const {
  std::lock_guard<std::mutex> lock(shown_mutex_);
  return tokens_;
}

int64_t Session::n_tokens() const {
  std::lock_guard<std::mutex> lock(shown_mutex_);
  return static_cast<int64_t>(tokens_.size());
}

SessionStats Session::stats() const {
  std::lock_guard<std::mutex> lock(shown_mutex_);
  return stats_;
}

void Session::set_sampler(const SamplerOptions& options) {
  const Busy busy(busy_);
  sampler_ = Sampler(options, model_->hyperparameters().n_vocab);
  sampler_options_ = options;
}

// The sampler may be another one since the last token was run.
bool Session::can_sample() const {
  const int32_t n_deciding = sampler_.n_deciding();
  return last_logits_.ids.empty() || (n_deciding > 0 && n_deciding <= std::ssize(last_logits_.ids));
}

// The last token's logits are gone, or are not enough: it counts as not yet run.
void Session::run_last_again() {
  last_logits_ = {};
  state_.truncate(std::max<int64_t>(0, std::ssize(tokens_) - 1));
}

void Session::check_stop(bool consume) {
  if (consume ? cancelled_.exchange(false) : cancelled_.load()) {
    throw Error(ErrorCode::kCancelled, "stopped on request");
  }
  if (interrupt_check_) interrupt_check_();
}

void Session::forward(const TokenBatch& batch, Keep keep, ForwardRequest request, ForwardResult* result) {
  request.check_stop = [this] { check_stop(true); };
  request.recorders = recorders_;
  state_.begin(batch, keep);
  try {
    model_->forward(state_, batch, request, result);
  } catch (...) {
    state_.rollback();
    throw;
  }
}

// A chain that is kept.
void Session::run_rows(std::span<const int32_t> tokens, LogitRows logits) {
  const TokenBatch batch = TokenBatch::make(tokens, {}, model_->hyperparameters().n_vocab);
  ForwardRequest request;
  request.logits = logits;
  request.n_best = sampler_.n_deciding();
  if (speculation_ != nullptr) speculation_->ask(&request);
  ForwardResult result;
  forward(batch, Keep::kAll, std::move(request), &result);
  std::vector<int32_t> path(tokens.size());
  std::iota(path.begin(), path.end(), 0);
  {
    const ZoneScope zone(recorders_.timeline, Zone::kCommit);
    state_.commit(path);
  }
  if (speculation_ != nullptr) {
    const ZoneScope zone(recorders_.timeline, Zone::kDraft);
    speculation_->observe(batch, result, path);
  }
  if (logits != LogitRows::kNone) last_logits_ = {std::move(result.logits), std::move(result.best_ids)};
}

void Session::append(std::span<const int32_t> tokens) {
  if (speculation_ == nullptr) return run_rows(tokens, LogitRows::kLast);
  // In pieces: what a drafter wants to see of a long prompt takes much memory.
  constexpr size_t kPiece = 512;
  TokenBatch::make(tokens, {}, model_->hyperparameters().n_vocab);  // all are checked before any is run
  const int64_t n_before = state_.n_committed();
  try {
    for (; tokens.size() > kPiece; tokens = tokens.subspan(kPiece)) run_rows(tokens.first(kPiece), LogitRows::kNone);
    run_rows(tokens, LogitRows::kLast);
  } catch (...) {
    if (state_.n_committed() > n_before) state_.truncate(n_before);
    speculation_->forget(state_.n_committed());
    throw;
  }
}

// A token just sampled is run only when something comes after it.
void Session::run_up_to(int64_t n_tokens) {
  const int64_t n_run = state_.n_committed();
  if (n_run < n_tokens)
    append(std::span(tokens_).subspan(static_cast<size_t>(n_run), static_cast<size_t>(n_tokens - n_run)));
}

// Shows the drafter what was kept without it: before it came, or by commit.
void Session::catch_up() {
  if (speculation_ == nullptr) return;
  const int64_t n_seen = speculation_->n_observed();
  const int64_t n_run = state_.n_committed();
  if (n_seen == n_run) return;
  ET_CHECK(n_seen < n_run);  // truncate has it forget
  const ZoneScope zone(recorders_.timeline, Zone::kDraft);
  if (!speculation_->needs_features()) {
    speculation_->observe(std::span(tokens_).subspan(static_cast<size_t>(n_seen), static_cast<size_t>(n_run - n_seen)));
    return;
  }
  state_.truncate(n_seen);  // to be run again, with the same bits
  speculation_->forget(state_.n_committed());
  last_logits_ = {};
}

void Session::require_nothing_pending() const {
  if (state_.n_pending() == 0) return;
  throw Error(ErrorCode::kInvalidRequest, std::to_string(state_.n_pending()) +
                                              " evaluated rows are pending; call commit(path) or rollback() first");
}

void Session::prefill(std::span<const int32_t> tokens) {
  const Busy busy(busy_);
  require_nothing_pending();
  const int64_t total = static_cast<int64_t>(tokens_.size() + tokens.size());
  if (total > n_ctx()) {
    throw Error(ErrorCode::kInvalidRequest, "the prompt brings the sequence to " + std::to_string(total) +
                                                " tokens and the context holds " + std::to_string(n_ctx()) +
                                                "; shorten it, or load the model with a larger context (--ctx)");
  }
  const int64_t start = now_us();
  CallProfile profile(*model_);
  profile.attach(&recorders_, id_, std::ssize(tokens_));
  catch_up();
  std::vector<int32_t> to_run(tokens_.begin() + state_.n_committed(), tokens_.end());
  to_run.insert(to_run.end(), tokens.begin(), tokens.end());
  if (tokens.empty()) TokenBatch::make(tokens, {}, 1);  // says that there are none
  append(to_run);
  profile.finish(0, StepKind::kPrefill, tokens, state_, nullptr);
  profile.close();
  std::lock_guard<std::mutex> lock(shown_mutex_);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  stats_.prefill_us += now_us() - start;
  stats_.n_prefill_tokens += static_cast<int64_t>(tokens.size());
}

std::optional<StepRecord> Session::step(const StepRequest& request) {
  Session* self = this;
  std::vector<SessionOutcome> outcomes = step_together({&self, 1}, {&request, 1}, kAnyRows);
  if (outcomes[0].error) std::rethrow_exception(outcomes[0].error);
  return std::move(outcomes[0].record);
}

void Session::set_speculation(std::unique_ptr<Drafter> drafter, std::unique_ptr<Selector> selector,
                              std::unique_ptr<Predictor> predictor, const DraftLimits& limits) {
  const Busy busy(busy_);
  speculation_ = drafter == nullptr ? nullptr
                                    : std::make_unique<Speculation>(model_, std::move(drafter), std::move(selector),
                                                                    std::move(predictor), limits);
  const std::lock_guard<std::mutex> lock(shown_mutex_);
  stats_.drafter_bytes = speculation_ == nullptr ? 0 : speculation_->memory_bytes();
}

CostProfile Session::cost_profile() const {
  const Busy busy(busy_);
  return speculation_ == nullptr ? CostProfile{} : speculation_->cost().profile();
}

void Session::restore_costs(const CostProfile& profile) {
  const Busy busy(busy_);
  if (speculation_ != nullptr) speculation_->cost().restore(profile);
}

std::vector<double> Session::selector_state() const {
  const Busy busy(busy_);
  return speculation_ == nullptr ? std::vector<double>{} : speculation_->selector().state();
}

void Session::restore_selector(std::span<const double> state) {
  const Busy busy(busy_);
  if (speculation_ != nullptr) speculation_->selector().restore(state);
}

ForwardResult Session::evaluate(std::span<const int32_t> tokens, std::span<const int32_t> parents, bool routing,
                                bool hidden) {
  const Busy busy(busy_);
  require_nothing_pending();
  const TokenBatch batch = TokenBatch::make(tokens, parents, model_->hyperparameters().n_vocab);
  CallProfile profile(*model_);
  profile.attach(&recorders_, id_, std::ssize(tokens_));
  catch_up();
  run_up_to(static_cast<int64_t>(tokens_.size()));
  ForwardRequest request;
  request.routing = routing;
  request.last_hidden = hidden;
  ForwardResult result;
  forward(batch, Keep::kAnyPath, std::move(request), &result);
  pending_ = batch.tokens;
  pending_logits_ = result.logits;
  profile.finish(0, StepKind::kEvaluate, {}, state_, nullptr);
  profile.close();
  return result;
}

void Session::commit(std::span<const int32_t> path) {
  const Busy busy(busy_);
  state_.commit(path);
  const auto n_vocab = static_cast<size_t>(model_->hyperparameters().n_vocab);
  {
    std::lock_guard<std::mutex> lock(shown_mutex_);
    for (const int32_t row : path) tokens_.push_back(pending_[static_cast<size_t>(row)]);
  }
  if (!path.empty()) {
    const float* last = pending_logits_.data() + static_cast<size_t>(path.back()) * n_vocab;
    last_logits_ = {{last, last + n_vocab}, {}};
  }
  drop_pending();
}

void Session::rollback() {
  const Busy busy(busy_);
  drop_pending();
}

void Session::drop_pending() {
  state_.rollback();
  pending_.clear();
  pending_logits_.clear();
}

void Session::truncate(int64_t length) {
  const Busy busy(busy_);
  require_nothing_pending();
  if (length < 0 || length > static_cast<int64_t>(tokens_.size())) {
    throw Error(ErrorCode::kInvalidRequest, "cannot go back to " + std::to_string(length) +
                                                " tokens: the session has " + std::to_string(tokens_.size()));
  }
  {
    std::lock_guard<std::mutex> lock(shown_mutex_);
    tokens_.resize(static_cast<size_t>(length));
  }
  const int64_t n_run = state_.n_committed();
  if (length < n_run || (length == n_run && last_logits_.logits.empty())) run_last_again();
  if (speculation_ != nullptr) speculation_->forget(state_.n_committed());
}

std::unique_ptr<Session> Session::branch() const {
  const Busy busy(busy_);
  auto copy = std::make_unique<Session>(model_, n_ctx(), sampler_options_);
  copy->state_ = state_.branch(model_->hyperparameters());
  copy->tokens_ = tokens_;
  copy->last_logits_ = last_logits_;
  copy->pending_ = pending_;
  copy->pending_logits_ = pending_logits_;
  return copy;
}

}  // namespace expertree
