#include "cpp/engine/speculation.h"

#include <algorithm>
#include <functional>
#include <string>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"
#include "cpp/model/sequence_state.h"

namespace expertree {
namespace {

// Predictions that are wrong more often would have the disk read the wrong experts.
constexpr double kLeastPrecision = 0.7;
constexpr double kPrecisionKeep = 0.9;

double seconds_since(int64_t start_us) { return static_cast<double>(now_us() - start_us) * 1e-6; }

void require_in_range(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return;
  throw Error(ErrorCode::kInvalidRequest,
              std::string(name) + " is " + std::to_string(value) + "; expected 1 to " + std::to_string(most));
}

// Of one expert of each MoE layer.
std::vector<double> expert_bytes(const Model& model) {
  std::vector<double> bytes;
  for (const ExpertLayer& layer : model.weights().experts) {
    double sum = 0.0;
    for (const ExpertLayer::Projection& projection : layer.projections) {
      sum += static_cast<double>(projection.experts.front().size_bytes);
    }
    bytes.push_back(sum);
  }
  return bytes;
}

// The rows of [n][width], one after the other.
std::vector<float> gathered(const std::vector<float>& values, size_t n, std::span<const int32_t> rows) {
  const size_t width = values.size() / n;
  std::vector<float> kept;
  kept.reserve(rows.size() * width);
  for (const int32_t row : rows) {
    const float* first = values.data() + static_cast<size_t>(row) * width;
    kept.insert(kept.end(), first, first + width);
  }
  return kept;
}

}  // namespace

Speculation::Speculation(std::shared_ptr<Model> model, std::unique_ptr<Drafter> drafter,
                         std::unique_ptr<Selector> selector, std::unique_ptr<Predictor> predictor,
                         const DraftLimits& limits)
    : model_(std::move(model)),
      drafter_(std::move(drafter)),
      selector_(std::move(selector)),
      predictor_(std::move(predictor)),
      cost_(model_->experts(), expert_bytes(*model_)),
      limits_(limits),
      features_(drafter_->features()) {
  constexpr int64_t kMostDepth = 64;
  require_in_range("draft_nodes", limits.max_nodes, SequenceState::kTreeCells - 1);
  require_in_range("draft_depth", limits.max_depth, kMostDepth);
  require_in_range("draft_top_k", limits.top_k, SequenceState::kTreeCells - 1);
  for (const int32_t layer : features_.tap_layers) {
    if (layer >= 0 && layer < model_->hyperparameters().n_layers) continue;
    throw Error(ErrorCode::kInvalidRequest,
                std::string("drafter ") + drafter_->name() + " asks for the input of layer " + std::to_string(layer) +
                    "; the model has " + std::to_string(model_->hyperparameters().n_layers) +
                    " layers. It was made for another model");
  }
  if (model_->n_moe_layers() == 0) predictor_.reset();
  const int64_t n_used = model_->hyperparameters().moe.n_used;
  if (const int64_t most = selector_->most_experts(); most > 0 && most < n_used) {
    throw Error(ErrorCode::kInvalidRequest, std::string("selector ") + selector_->name() + " leaves " +
                                                std::to_string(most) + " experts of a layer, and every token of this " +
                                                "model uses " + std::to_string(n_used) + "; give at least that many");
  }
}

void Speculation::ask(ForwardRequest* request) const {
  request->tap_layers = features_.tap_layers;
  request->last_hidden = features_.last_hidden || predictor_wants_hidden();
  request->routing = model_->n_moe_layers() > 0;
}

void Speculation::forget(int64_t length) noexcept { n_observed_ = std::min(n_observed_, length); }

void Speculation::align() {
  if (n_drafter_ == n_observed_) return;
  drafter_->truncate(n_observed_);
  n_drafter_ = n_observed_;
}

void Speculation::observe(std::span<const int32_t> tokens) {
  ET_CHECK(!needs_features());
  align();
  drafter_->observe({tokens, n_observed_});
  n_drafter_ = n_observed_ += static_cast<int64_t>(tokens.size());
}

void Speculation::observe(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows) {
  align();
  std::vector<int32_t> tokens;
  for (const int32_t row : rows) tokens.push_back(batch.tokens[static_cast<size_t>(row)]);
  const std::vector<float> taps = gathered(result.taps, batch.tokens.size(), rows);
  const std::vector<float> last_hidden = gathered(result.last_hidden, batch.tokens.size(), rows);
  drafter_->observe({tokens, n_observed_, taps.empty() ? nullptr : taps.data(),
                     features_.last_hidden && !last_hidden.empty() ? last_hidden.data() : nullptr});
  n_drafter_ = n_observed_ += static_cast<int64_t>(tokens.size());
  if (predictor_wants_hidden() && !last_hidden.empty()) {
    predictor_->observe_hidden(std::span(last_hidden).last(static_cast<size_t>(model_->hyperparameters().n_embd)));
  }
  if (predictor_ != nullptr) observe_experts(batch, result, rows);
}

void Speculation::observe_experts(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows) {
  const HyperParameters& h = model_->hyperparameters();
  ExpertSets used{static_cast<int32_t>(model_->n_moe_layers()),
                  static_cast<int32_t>(h.moe.n_experts),
                  static_cast<int32_t>(h.moe.n_used),
                  {}};
  std::vector<int32_t> tokens;
  for (const int32_t row : rows) {
    tokens.push_back(batch.tokens[static_cast<size_t>(row)]);
    for (int64_t layer = 0; layer < used.n_layers; ++layer) {
      const int32_t* ids = result.expert_ids.data() + (layer * batch.size() + row) * used.n_used;
      used.ids.insert(used.ids.end(), ids, ids + used.n_used);
    }
  }
  predictor_->observe(tokens, used);
}

void Speculation::draft(std::span<const int32_t> history, int64_t max_depth, Sampler& sampler,
                        const std::function<void()>& check_stop, StepRecord* record) {
  begin_plain();
  const int64_t start = now_us();
  align();
  if (max_depth > 0 && selector_->wants_draft()) {
    DraftLimits limits = limits_;
    limits.max_depth = static_cast<int32_t>(std::min<int64_t>(limits.max_depth, max_depth));
    limits.least_score = selector_->least_score();
    limits.check_stop = check_stop;
    record->tree = drafter_->draft(history, limits, sampler);
    record->tree.check(drafter_->name(), sampler.n_vocab());
    if (record->tree.size() > limits.max_nodes ||
        std::ranges::any_of(record->tree.depths, [&](int32_t depth) { return depth > limits.max_depth; })) {
      record->tree = record->tree.best(limits.max_nodes, limits.max_depth);
    }
  }
  record->draft_seconds = seconds_since(start);
  if (model_->experts() != nullptr) cost_.set_costs(model_->experts()->costs());
}

// A prompt, or a text that was cut, moved what is in memory past the bookkeeping.
void Speculation::begin_plain() {
  const ExpertPager* pager = model_->experts();
  if (pager == nullptr || pager->plan().holds_all() || n_plain_ == n_observed_) return;
  plain_.emplace(*pager);
  n_plain_ = n_observed_;
}

void Speculation::predict(int32_t root_token, StepRecord* record) {
  const int64_t start = now_us();
  if (predictor_ != nullptr) record->predicted = predictor_->predict(root_token, record->tree);
  record->select_seconds += seconds_since(start);
}

void Speculation::choose(const SharedPass& others, StepRecord* record) {
  if (record->tree.size() == 0) return;
  const int64_t start = now_us();
  if (others.n_sequences() == 0) {
    record->selected = selector_->select(record->tree, record->predicted, cost_);
  } else {
    record->selected = selector_->select(record->tree, record->predicted, SharedCost(cost_, others));
  }
  record->tree.check_selection(selector_->name(), record->selected);
  record->select_seconds += seconds_since(start);
}

SharedRows Speculation::shared_rows(const StepRecord& record) const {
  return {&record.predicted, record.selected, selector_->expected_tokens(record.tree, record.selected),
          record.tree.size() > 0 ? cost_.draft_seconds() : 0.0};
}

double Speculation::pass_seconds(const SharedPass& others, const StepRecord& record) const {
  if (record.tree.size() == 0) return 0.0;
  if (others.n_sequences() == 0) return step_seconds(cost_, record.predicted, record.selected);
  return step_seconds(SharedCost(cost_, others), record.predicted, record.selected);
}

// At once, so that it reads ahead of the layers. A layer's own guess,
// made while the one before it runs, is better and goes first (priority 0); then the layers in their order.
void Speculation::hint_experts(const StepRecord& record) const {
  const ExpertSets& sets = record.predicted;
  ExpertPager* pager = model_->experts();
  if (pager == nullptr || sets.empty() || precision_ < kLeastPrecision || !pager->wants_hints()) return;
  std::vector<int32_t> rows_of(static_cast<size_t>(sets.n_experts));
  std::vector<int32_t> wanted;
  for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
    std::ranges::fill(rows_of, 0);
    wanted.clear();
    const auto count = [&](int64_t row) {
      for (const int32_t expert : sets.of(row, layer)) {
        if (rows_of[static_cast<size_t>(expert)]++ == 0) wanted.push_back(expert);
      }
    };
    count(0);
    for (const int32_t node : record.selected) count(node + 1);
    std::ranges::stable_sort(wanted, std::greater(), [&](int32_t e) { return rows_of[static_cast<size_t>(e)]; });
    pager->hint(layer, wanted, -1.0f - static_cast<float>(layer));
  }
}

void Speculation::judge_prediction(const ExpertSets& predicted, const ForwardResult& result, int64_t n_rows) {
  if (predicted.empty() || result.expert_ids.empty()) return;
  int64_t n_right = 0;
  for (int32_t layer = 0; layer < predicted.n_layers; ++layer) {
    const std::span used(result.expert_ids.data() + layer * n_rows * predicted.n_used,
                         static_cast<size_t>(predicted.n_used));
    for (const int32_t expert : predicted.of(0, layer)) n_right += std::ranges::count(used, expert);
  }
  const double right = static_cast<double>(n_right) / static_cast<double>(predicted.n_layers * predicted.n_used);
  precision_ = kPrecisionKeep * precision_ + (1.0 - kPrecisionKeep) * right;
}

void Speculation::learn(const TokenBatch& batch, const ForwardResult& result, std::span<const int32_t> rows,
                        const PassRecord& pass, StepRecord* record) {
  const int64_t start = now_us();
  observe(batch, result, rows);
  record->draft_seconds += seconds_since(start);
  if (!result.expert_ids.empty()) model_->keep_rows(result.expert_ids, batch.size(), rows.subspan(1));
  record->plain_misses = pass.kept_misses;
  if (plain_ && pass.n_sequences == 1 && !result.expert_ids.empty()) {
    record->plain_misses = static_cast<double>(plain_->decode(result.expert_ids, batch.size(), rows));
    n_plain_ = n_observed_;
  }
  judge_prediction(record->predicted, result, batch.size());
  record->expert_hits = pass.after.n_hits - pass.before.n_hits;
  record->expert_misses = pass.after.n_misses + pass.after.n_late - pass.before.n_misses - pass.before.n_late;
  record->bytes_read = pass.after.bytes_read - pass.before.bytes_read;
  record->wait_seconds = static_cast<double>(pass.after.wait_us - pass.before.wait_us) * 1e-6;
  if (record->tree.size() > 0) cost_.record_draft(record->draft_seconds);
  if (!pass.is_typical) return;
  cost_.record({pass.n_rows, pass.n_experts, pass.n_expert_rows, record->verify_seconds, record->wait_seconds,
                record->predicted_seconds, pass.after.n_device_runs - pass.before.n_device_runs,
                pass.after.n_device_rows - pass.before.n_device_rows});
  const double waited = record->wait_seconds * (pass.all_misses > 0.0 ? pass.misses / pass.all_misses : pass.share);
  const double ran = std::max(0.0, record->verify_seconds - record->wait_seconds) * pass.share;
  selector_->observe({&record->tree, record->selected, record->accepted, record->draft_seconds, ran + waited, waited,
                      pass.misses, record->plain_misses});
}

}  // namespace expertree
