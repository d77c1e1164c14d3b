#include "cpp/spec/drafters/medusa.h"

#include <algorithm>

#include "cpp/base/error.h"
#include "cpp/model/arch/draft_heads.h"

namespace expertree {

MedusaDrafter::MedusaDrafter(std::shared_ptr<Model> target, std::shared_ptr<const MedusaHeads> heads)
    : target_(std::move(target)),
      heads_(std::move(heads)),
      ranker_(heads_->path, heads_->target_ids, heads_->output.rows, target_->hyperparameters().n_vocab) {}

void MedusaDrafter::observe(const CommittedRows& rows) {
  ET_CHECK(rows.first_position == n_observed_ && (rows.last_hidden != nullptr || rows.tokens.empty()));
  if (rows.tokens.empty()) return;
  n_observed_ += std::ssize(rows.tokens);
  const int64_t n_embd = target_->hyperparameters().n_embd;
  const float* last = rows.last_hidden + (std::ssize(rows.tokens) - 1) * n_embd;
  hidden_.assign(last, last + n_embd);
}

void MedusaDrafter::truncate(int64_t length) {
  if (length >= n_observed_) return;
  n_observed_ = std::max<int64_t>(length, 0);
  hidden_.clear();
}

// The logits of the first n heads.
void MedusaDrafter::run_heads(int64_t n) {
  CpuBackend& backend = target_->backend();
  const int64_t n_embd = target_->hyperparameters().n_embd;
  input_.reset(1, n_embd);
  std::ranges::copy(hidden_, input_.row(0));
  inner_.resize(static_cast<size_t>(n * n_embd));
  std::vector<CpuBackend::Product> in;
  for (int64_t i = 0; i < n; ++i) {
    const MedusaHeads::Head& head = heads_->heads[static_cast<size_t>(i)];
    in.push_back({head.weight, inner_.data() + i * n_embd, n_embd, head.bias.data()});
  }
  backend.matmul(input_, in);
  const std::vector<float> ones(static_cast<size_t>(n_embd), 1.0f);
  states_.reset(n, n_embd);
  for (int64_t i = 0; i < n; ++i) {
    float* state = states_.row(i);
    backend.kernels().silu_mul(inner_.data() + i * n_embd, ones.data(), n_embd, state);
    for (int64_t j = 0; j < n_embd; ++j) state[j] = hidden_[static_cast<size_t>(j)] + state[j];
  }
  logits_.resize(static_cast<size_t>(n * ranker_.n_draft()));
  const CpuBackend::Product out[] = {{heads_->output, logits_.data(), ranker_.n_draft()}};
  backend.matmul(states_, out);
}

TokenTree MedusaDrafter::draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) {
  ET_CHECK(std::ssize(history) == n_observed_ + 1);
  const int64_t n_heads = std::min<int64_t>(std::ssize(heads_->heads), limits.max_depth);
  if (hidden_.empty() || n_heads < 1) return {};
  ranker_.begin(history);
  const auto lock = target_->lock_backend();
  run_heads(n_heads);
  int64_t depth = 0;
  return grow_tree(limits, [&](std::span<const int32_t> frontier, const TokenTree& pool) {
    if (depth == n_heads) return std::vector<std::vector<Continuation>>(frontier.size());
    float* row = logits_.data() + depth++ * ranker_.n_draft();
    return ranker_.rank(row, 1, frontier, pool, limits.top_k, sampler, target_->backend());
  });
}

uint64_t MedusaDrafter::memory_bytes() const {
  return heads_->arena.size_bytes() + heads_->output_rows.size_bytes() + ranker_.memory_bytes() +
         (logits_.capacity() + inner_.capacity()) * sizeof(float);
}

std::unique_ptr<Drafter> make_medusa_drafter(const std::string& argument, const std::shared_ptr<Model>& target) {
  const auto heads = target->parts().get<MedusaHeads>(
      "medusa", argument, [&] { return load_medusa(argument, *target); },
      [](const MedusaHeads& h) { return h.arena.size_bytes() + h.output_rows.size_bytes(); });
  return std::make_unique<MedusaDrafter>(target, heads);
}

}  // namespace expertree
