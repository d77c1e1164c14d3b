#include "cpp/spec/drafters/mtp.h"

#include <algorithm>
#include <numeric>

#include "cpp/base/error.h"
#include "cpp/model/arch/draft_heads.h"
#include "cpp/tensor/dequantize.h"

namespace expertree {

MtpDrafter::MtpDrafter(std::shared_ptr<Model> target, std::shared_ptr<const NextnBlock> block, int64_t n_ctx)
    : target_(std::move(target)),
      block_(std::move(block)),
      state_(block_->layer->new_state(n_ctx)),
      ranker_(target_->path(), {}, target_->hyperparameters().n_vocab, target_->hyperparameters().n_vocab),
      zeros_(static_cast<size_t>(n_embd()), 0.0f) {}

void MtpDrafter::observe(const CommittedRows& rows) {
  ET_CHECK(rows.first_position == n_observed() && (rows.last_hidden != nullptr || rows.tokens.empty()));
  states_.insert(states_.end(), rows.last_hidden, rows.last_hidden + std::ssize(rows.tokens) * n_embd());
}

void MtpDrafter::truncate(int64_t length) {
  if (length >= n_observed()) return;
  states_.resize(static_cast<size_t>(std::max<int64_t>(length, 0) * n_embd()));
}

const float* MtpDrafter::state_before(int64_t position) const {
  return position == 0 ? zeros_.data() : states_.data() + (position - 1) * n_embd();
}

// inputs_: what the layer reads for each token with its state.
void MtpDrafter::make_inputs(std::span<const int32_t> tokens, std::span<const float* const> states) {
  CpuBackend& backend = target_->backend();
  const WeightMatrix& w = block_->token_embd;
  const float eps = target_->hyperparameters().rms_eps;
  const auto n = std::ssize(tokens);
  pairs_.reset(n, 2 * n_embd());
  backend.pool().parallel_for(n, [&](int64_t r) {
    float* x = pairs_.row(r);
    dequantize_row(w.dtype, w.data + tokens[static_cast<size_t>(r)] * w.row_bytes, n_embd(), x);
    backend.kernels().rms_norm(x, block_->embedding_norm.data(), eps, n_embd(), x);
    backend.kernels().rms_norm(states[static_cast<size_t>(r)], block_->state_norm.data(), eps, n_embd(), x + n_embd());
  });
  inputs_.resize(static_cast<size_t>(n * n_embd()));
  const CpuBackend::Product product[] = {{block_->input, inputs_.data(), n_embd()}};
  backend.matmul(pairs_, product);
}

// Rows of state_'s pending batch, with inputs_.
void MtpDrafter::run(const TokenBatch& batch, ForwardRequest request) {
  request.inputs = inputs_.data();
  try {
    block_->layer->forward(state_, batch, request, &result_);
  } catch (...) {
    state_.rollback();
    throw;
  }
}

// Runs the entries that state_ lacks, the root's in any case, and keeps them: the tokens tell an entry, for the model's
// output before it depends on them alone.
void MtpDrafter::run_history(std::span<const int32_t> history, const std::function<void()>& check_stop) {
  const int64_t root = std::ssize(history) - 1;
  const auto differ = std::ranges::mismatch(run_, history).in1;
  const int64_t kept = state_.truncate(std::min<int64_t>(differ - run_.begin(), root));
  run_.resize(static_cast<size_t>(kept));
  // Of all but the root keys and values are enough, which costs little beside the layer's experts. A long prompt comes in
  // pieces, for its inputs are twice the model's width.
  constexpr int64_t kPiece = 512;
  int64_t end = 0;
  for (int64_t first = kept; first <= root; first = end) {
    end = first == root ? root + 1 : std::min(first + kPiece, root);
    if (check_stop) check_stop();
    const std::span<const int32_t> tokens =
        history.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
    std::vector<const float*> states;
    for (int64_t i = first; i < end; ++i) states.push_back(state_before(i));
    make_inputs(tokens, states);
    const TokenBatch batch = TokenBatch::make(tokens, {}, target_->hyperparameters().n_vocab);
    ForwardRequest request;
    request.logits = first == root ? LogitRows::kLast : LogitRows::kNone;
    request.last_hidden = first == root;
    state_.begin(batch, Keep::kAll);
    run(batch, std::move(request));
    std::vector<int32_t> path(tokens.size());
    std::iota(path.begin(), path.end(), 0);
    state_.commit(path);
    run_.insert(run_.end(), tokens.begin(), tokens.end());
  }
  root_state_ = result_.last_hidden;
}

void MtpDrafter::run_nodes(std::span<const int32_t> frontier, const TokenTree& pool) {
  const auto first = std::ssize(nodes_);
  std::vector<int32_t> tokens;
  std::vector<const float*> states;
  for (const int32_t node : frontier) {
    const int32_t parent = pool.parents[static_cast<size_t>(node)];
    const auto row = static_cast<int32_t>(std::ranges::find(nodes_, parent) - nodes_.begin());
    batch_.tokens.push_back(pool.tokens[static_cast<size_t>(node)]);
    batch_.parents.push_back(parent < 0 ? -1 : row);
    batch_.depths.push_back(parent < 0 ? 0 : batch_.depths[static_cast<size_t>(row)] + 1);
    tokens.push_back(batch_.tokens.back());
    states.push_back(parent < 0 ? root_state_.data() : node_states_.data() + row * n_embd());
  }
  nodes_.insert(nodes_.end(), frontier.begin(), frontier.end());
  make_inputs(tokens, states);
  if (first == 0) {
    state_.begin(batch_);
  } else {
    state_.extend(batch_);
  }
  ForwardRequest request;
  request.first_row = first;
  request.last_hidden = true;
  run(batch_, std::move(request));
  node_states_.insert(node_states_.end(), result_.last_hidden.begin(), result_.last_hidden.end());
}

TokenTree MtpDrafter::draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) {
  ET_CHECK(std::ssize(history) == n_observed() + 1);
  DraftLimits within = limits;
  within.max_depth = static_cast<int32_t>(std::min<int64_t>(limits.max_depth, state_.n_ctx() - std::ssize(history)));
  if (within.max_depth < 1) return {};
  ranker_.begin(history);
  nodes_.clear();
  batch_ = {};
  node_states_.clear();
  kept_.clear();
  const auto lock = target_->lock_backend();
  const auto expand = [&](std::span<const int32_t> frontier, const TokenTree& pool) {
    if (frontier[0] < 0) {
      run_history(history, limits.check_stop);
    } else if (std::ssize(nodes_) + std::ssize(frontier) <= SequenceState::kTreeCells) {
      run_nodes(frontier, pool);
    } else {
      return std::vector<std::vector<Continuation>>(frontier.size());
    }
    for (size_t i = 0; keep_expansions_ && i < frontier.size(); ++i) {
      const int32_t node = frontier[i];
      const int32_t parent = node < 0 ? -1 : pool.parents[static_cast<size_t>(node)];
      const auto above = parent < 0 ? 0 : std::ranges::find(nodes_, parent) - nodes_.begin() + 1;
      const auto row = result_.logits.begin() + static_cast<int64_t>(i) * ranker_.n_draft();
      kept_.push_back({node < 0 ? history.back() : pool.tokens[static_cast<size_t>(node)],
                       node < 0 ? -1 : static_cast<int32_t>(above),
                       {row, row + ranker_.n_draft()}});
    }
    return ranker_.rank(result_.logits.data(), std::ssize(frontier), frontier, pool, limits.top_k, sampler,
                        target_->backend());
  };
  try {
    TokenTree tree = grow_tree(within, expand);
    state_.rollback();
    return tree;
  } catch (...) {
    state_.rollback();
    throw;
  }
}

uint64_t MtpDrafter::memory_bytes() const {
  const Model& layer = *block_->layer;
  return layer.size_bytes() + layer.state_bytes(state_.n_ctx()) + states_.capacity() * sizeof(float) +
         ranker_.memory_bytes();
}

std::unique_ptr<Drafter> make_mtp_drafter(const std::shared_ptr<Model>& target, int64_t n_ctx) {
  if (n_ctx <= 0) n_ctx = std::min(kDefaultContext, target->hyperparameters().n_ctx_train);
  const auto block = target->parts().get<NextnBlock>(
      "mtp", target->path(), [&] { return load_nextn(*target); },
      [](const NextnBlock& b) { return b.layer->size_bytes(); });
  return std::make_unique<MtpDrafter>(target, block, n_ctx);
}

}  // namespace expertree
