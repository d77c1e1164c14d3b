#include "cpp/spec/drafters/model.h"

#include <algorithm>

#include "cpp/base/error.h"

namespace expertree {
namespace {

int64_t draft_context(const Model& draft, int64_t n_ctx) {
  return std::max<int64_t>(1, std::min(n_ctx, draft.hyperparameters().n_ctx_train));
}

}  // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<const DraftModel> draft, int64_t target_vocabulary, int64_t n_ctx)
    : draft_(std::move(draft)),
      model_(draft_->model),
      state_(model_->new_state(draft_context(*model_, n_ctx))),
      ranker_(model_->path(), {}, model_->hyperparameters().n_vocab, target_vocabulary) {}

// Runs what the state lacks of the history, its last token in any case, and keeps it.
void ModelDrafter::run_history(std::span<const int32_t> history, const std::function<void()>& check_stop) {
  const auto differ = std::ranges::mismatch(run_, history).in1;
  const int64_t kept = state_.truncate(std::min<int64_t>(differ - run_.begin(), std::ssize(history) - 1));
  run_.resize(static_cast<size_t>(kept));
  const std::span<const int32_t> fresh = history.subspan(static_cast<size_t>(kept));
  const TokenBatch batch = TokenBatch::make(fresh, {}, model_->hyperparameters().n_vocab);
  state_.begin(batch, Keep::kAll);
  ForwardRequest request;
  request.logits = LogitRows::kLast;
  request.check_stop = check_stop;
  try {
    model_->forward(state_, batch, request, &result_);
  } catch (...) {
    state_.rollback();
    throw;
  }
  std::vector<int32_t> path(fresh.size());
  for (size_t i = 0; i < path.size(); ++i) path[i] = static_cast<int32_t>(i);
  state_.commit(path);
  run_.insert(run_.end(), fresh.begin(), fresh.end());
}

// All nodes so far are one batch again, of a small model with few rows, and the logits of the frontier are kept.
void ModelDrafter::run_nodes(std::span<const int32_t> frontier, const TokenTree& pool) {
  const size_t first = nodes_.size();
  nodes_.insert(nodes_.end(), frontier.begin(), frontier.end());
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;
  for (const int32_t node : nodes_) {
    tokens.push_back(pool.tokens[static_cast<size_t>(node)]);
    const int32_t parent = pool.parents[static_cast<size_t>(node)];
    const auto row = std::ranges::find(nodes_, parent) - nodes_.begin();
    parents.push_back(parent < 0 ? -1 : static_cast<int32_t>(row));
  }
  const int64_t n_vocab = model_->hyperparameters().n_vocab;
  const TokenBatch batch = TokenBatch::make(tokens, parents, n_vocab);
  state_.begin(batch);
  try {
    model_->forward(state_, batch, {}, &result_);
  } catch (...) {
    state_.rollback();
    throw;
  }
  state_.rollback();
  result_.logits.erase(result_.logits.begin(), result_.logits.begin() + static_cast<int64_t>(first) * n_vocab);
}

TokenTree ModelDrafter::draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) {
  DraftLimits within = limits;
  within.max_depth = static_cast<int32_t>(std::min<int64_t>(limits.max_depth, state_.n_ctx() - std::ssize(history)));
  if (history.empty() || within.max_depth < 1) return {};
  // Padded ids of the target that the draft model does not have.
  const int64_t n_vocab = model_->hyperparameters().n_vocab;
  if (std::ranges::any_of(history, [&](int32_t token) { return token >= n_vocab; })) return {};
  ranker_.begin(history);
  nodes_.clear();
  return grow_tree(within, [&](std::span<const int32_t> frontier, const TokenTree& pool) {
    if (frontier[0] < 0) {
      run_history(history, limits.check_stop);
    } else if (std::ssize(nodes_) + std::ssize(frontier) <= SequenceState::kTreeCells) {
      run_nodes(frontier, pool);
    } else {
      return std::vector<std::vector<Continuation>>(frontier.size());
    }
    const auto lock = model_->lock_backend();  // other sessions may run the model meanwhile
    return ranker_.rank(result_.logits.data(), std::ssize(frontier), frontier, pool, limits.top_k, sampler,
                        model_->backend());
  });
}

uint64_t ModelDrafter::memory_bytes() const {
  return model_->size_bytes() + model_->state_bytes(state_.n_ctx()) + ranker_.memory_bytes();
}

std::unique_ptr<Drafter> make_model_drafter(const std::string& argument, const std::shared_ptr<Model>& target,
                                            int64_t n_ctx) {
  // Sessions run it in turn, each with a sequence of its own.
  const auto draft = target->parts().get<DraftModel>(
      "model", argument,
      [&] {
        require_same_vocabulary(argument, target->path());
        ModelOptions options;
        options.n_threads = target->n_threads();
        options.isa = target->isa();
        options.cache_types = target->cache_types();
        return std::make_shared<const DraftModel>(DraftModel{Model::load(argument, options, nullptr)});
      },
      [](const DraftModel& d) { return d.model->size_bytes(); });
  const HyperParameters& h = target->hyperparameters();
  if (n_ctx <= 0) n_ctx = std::min(kDefaultContext, h.n_ctx_train);
  return std::make_unique<ModelDrafter>(draft, h.n_vocab, n_ctx);
}

}  // namespace expertree
