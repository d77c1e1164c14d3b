#include "cpp/engine/session.h"

#include <algorithm>
#include <string>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

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

// A second thread that calls in meanwhile is refused instead of corrupting the session.
class Busy {
 public:
  explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
    if (flag_.exchange(true)) {
      throw Error(
          ErrorCode::kInvalidRequest,
          "the session is already running a call from another thread; wait for it, or use a session per thread");
    }
  }
  ~Busy() { flag_.store(false); }

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

Session::Session(std::shared_ptr<Model> model, int64_t n_ctx, const SamplerOptions& options)
    : model_(std::move(model)),
      state_(model_->hyperparameters(), checked_context(n_ctx)),
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

ForwardResult Session::forward(const TokenBatch& batch, LogitRows logits, bool routing) {
  ForwardRequest request;
  request.logits = logits;
  request.routing = routing;
  request.check_stop = [this] {
    if (cancelled_.exchange(false)) throw Error(ErrorCode::kCancelled, "stopped on request");
    if (interrupt_check_) interrupt_check_();
  };
  state_.begin(batch);
  ForwardResult result;
  try {
    model_->forward(state_, batch, request, &result);
  } catch (...) {
    state_.rollback();
    throw;
  }
  return result;
}

void Session::append(std::span<const int32_t> tokens, LogitRows logits) {
  const TokenBatch batch = TokenBatch::make(tokens, {}, model_->hyperparameters().n_vocab);
  ForwardResult result = forward(batch, logits, false);
  std::vector<int32_t> path(tokens.size());
  for (size_t i = 0; i < path.size(); ++i) path[i] = static_cast<int32_t>(i);
  state_.commit(path);
  last_logits_ = std::move(result.logits);
}

// A token just sampled is run only when something comes after it.
void Session::run_last_token() {
  if (static_cast<int64_t>(tokens_.size()) == state_.n_committed()) return;
  append(std::span(tokens_).last(1), LogitRows::kLast);
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
  std::vector<int32_t> to_run(tokens_.begin() + state_.n_committed(), tokens_.end());
  to_run.insert(to_run.end(), tokens.begin(), tokens.end());
  if (tokens.empty()) TokenBatch::make(tokens, {}, 1);  // says that there are none
  append(to_run, LogitRows::kLast);
  std::lock_guard<std::mutex> lock(shown_mutex_);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  stats_.prefill_us += now_us() - start;
  stats_.n_prefill_tokens += static_cast<int64_t>(tokens.size());
}

std::optional<int32_t> Session::step() {
  const Busy busy(busy_);
  require_nothing_pending();
  if (tokens_.empty()) {
    throw Error(ErrorCode::kInvalidRequest, "nothing to continue: the session has no tokens; call prefill first");
  }
  if (static_cast<int64_t>(tokens_.size()) > n_ctx()) return std::nullopt;
  const int64_t start = now_us();
  run_last_token();
  const int32_t token =
      sampler_.sample(last_logits_.data(), static_cast<int64_t>(tokens_.size()), TokenHistory{tokens_, {}});
  std::lock_guard<std::mutex> lock(shown_mutex_);
  tokens_.push_back(token);
  stats_.decode_us += now_us() - start;
  ++stats_.n_decode_tokens;
  return token;
}

ForwardResult Session::evaluate(std::span<const int32_t> tokens, std::span<const int32_t> parents, bool routing) {
  const Busy busy(busy_);
  require_nothing_pending();
  const TokenBatch batch = TokenBatch::make(tokens, parents, model_->hyperparameters().n_vocab);
  run_last_token();
  ForwardResult result = forward(batch, LogitRows::kAll, routing);
  pending_ = batch.tokens;
  pending_logits_ = result.logits;
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
    last_logits_.assign(last, last + n_vocab);
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
  if (length < state_.n_committed()) {
    // The logits of the new last token are gone, so it counts as not yet run.
    state_.truncate(std::max<int64_t>(0, length - 1));
    last_logits_.clear();
  }
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
