#include "cpp/spec/drafters/eagle3.h"

#include <algorithm>

#include "cpp/base/error.h"
#include "cpp/model/arch/draft_heads.h"

namespace expertree {
namespace {

// Observed rows that are run together; fewer wait for the next draft, whose pass they share.
constexpr int64_t kChunkRows = 256;
constexpr int64_t kWaitingRows = 32;

}  // namespace

Eagle3Drafter::Eagle3Drafter(std::shared_ptr<Model> target, std::shared_ptr<const Eagle3Head> head)
    : target_(std::move(target)),
      layer_(*target_, head),
      ranker_(head->path, head->target_ids, head->n_draft(), target_->hyperparameters().n_vocab) {}

void Eagle3Drafter::observe(const CommittedRows& rows) {
  ET_CHECK(rows.first_position == n_observed() && (rows.taps != nullptr || rows.tokens.empty()));
  slots_.clear();
  // The draft's root is what was run next, so its entry holds.
  if (!rows.tokens.empty() && rows.tokens[0] == root_token_ && n_entries_ == n_observed() - 1) ++n_entries_;
  root_token_ = -1;
  const int64_t width = layer_.n_features();
  const auto n = std::ssize(rows.tokens);
  for (int64_t begin = 0; begin < n; begin += kChunkRows) {
    const int64_t end = std::min(n, begin + kChunkRows);
    tokens_.insert(tokens_.end(), rows.tokens.begin() + begin, rows.tokens.begin() + end);
    pending_features_.insert(pending_features_.end(), rows.taps + begin * width, rows.taps + end * width);
    if (std::ssize(pending_features_) < kWaitingRows * width) continue;
    const auto lock = target_->lock_backend();
    make_states();
    run_entries(n_observed() - 1);
  }
}

void Eagle3Drafter::truncate(int64_t length) {
  if (length >= n_observed()) return;
  length = std::max<int64_t>(length, 0);
  tokens_.resize(static_cast<size_t>(length));
  const int64_t n_states = std::min(length, std::ssize(states_) / layer_.n_embd());
  states_.resize(static_cast<size_t>(n_states * layer_.n_embd()));
  pending_features_.resize(static_cast<size_t>((length - n_states) * layer_.n_features()));
  n_entries_ = std::min(n_entries_, std::max<int64_t>(0, length - 1));
  root_token_ = -1;
  slots_.clear();
}

void Eagle3Drafter::make_states() {
  const auto n = std::ssize(pending_features_) / layer_.n_features();
  if (n == 0) return;
  const size_t before = states_.size();
  states_.resize(before + static_cast<size_t>(n * layer_.n_embd()));
  layer_.first_states(pending_features_.data(), n, states_.data() + before);
  pending_features_.clear();
}

Eagle3Layer::Row Eagle3Drafter::entry(int64_t i, int32_t next_token) const {
  return {next_token, states_.data() + i * layer_.n_embd(), i, i, i + 1, {}};
}

void Eagle3Drafter::run_entries(int64_t end) {
  if (end <= n_entries_) return;
  std::vector<Eagle3Layer::Row> rows;
  for (int64_t i = n_entries_; i < end; ++i) rows.push_back(entry(i, tokens_[static_cast<size_t>(i) + 1]));
  layer_.run(rows, std::ssize(rows), nullptr);
  n_entries_ = end;
}

void Eagle3Drafter::expand_root(int32_t token) {
  make_states();
  const int64_t root = n_observed() - 1;
  std::vector<Eagle3Layer::Row> rows;
  for (int64_t i = n_entries_; i < root; ++i) rows.push_back(entry(i, tokens_[static_cast<size_t>(i) + 1]));
  rows.push_back(entry(root, token));
  outputs_.resize(static_cast<size_t>(layer_.n_embd()));
  layer_.run(rows, std::ssize(rows) - 1, outputs_.data());
  n_entries_ = root;
  root_token_ = token;
  slots_.push_back({token, -1, {}});
}

void Eagle3Drafter::expand_nodes(std::span<const int32_t> frontier, const TokenTree& pool) {
  const auto first = std::ssize(slots_);
  outputs_.resize(static_cast<size_t>((first + std::ssize(frontier)) * layer_.n_embd()));
  slot_of_.resize(static_cast<size_t>(pool.size()), -1);
  for (const int32_t node : frontier) {
    const auto i = static_cast<size_t>(node);
    const int32_t parent = pool.parents[i] < 0 ? 0 : slot_of_[static_cast<size_t>(pool.parents[i])];
    ET_CHECK(parent >= 0);
    std::vector<int32_t> tail = slots_[static_cast<size_t>(parent)].tail;
    tail.push_back(static_cast<int32_t>(n_observed() - 1 + std::ssize(slots_)));
    slot_of_[i] = static_cast<int32_t>(slots_.size());
    slots_.push_back({pool.tokens[i], parent, std::move(tail)});
  }
  std::vector<Eagle3Layer::Row> rows;
  for (auto s = static_cast<size_t>(first); s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    rows.push_back({slot.token, output(slot.parent), n_observed() - 1 + std::ssize(slot.tail), slot.tail.back(),
                    n_observed(), slot.tail});
  }
  layer_.run(rows, 0, outputs_.data() + first * layer_.n_embd());
}

TokenTree Eagle3Drafter::draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) {
  ET_CHECK(std::ssize(history) == n_observed() + 1);
  slots_.clear();
  slot_of_.clear();
  kept_logits_.clear();
  if (n_observed() == 0) return {};  // no state yet to go with the first token
  ranker_.begin(history);
  const auto lock = target_->lock_backend();
  return grow_tree(limits, [&](std::span<const int32_t> frontier, const TokenTree& pool) {
    const auto first = std::ssize(slots_);
    if (frontier[0] < 0) {
      expand_root(history.back());
    } else {
      expand_nodes(frontier, pool);
    }
    const auto n = std::ssize(frontier);
    logits_.resize(static_cast<size_t>(n * ranker_.n_draft()));
    layer_.logits(output(static_cast<int32_t>(first)), n, logits_.data());
    for (int64_t r = 0; keep_expansions_ && r < n; ++r) {
      const float* row = logits_.data() + r * ranker_.n_draft();
      kept_logits_.emplace_back(row, row + ranker_.n_draft());
    }
    return ranker_.rank(logits_.data(), n, frontier, pool, limits.top_k, sampler, target_->backend());
  });
}

std::vector<int32_t> Eagle3Drafter::slots_of(int32_t root_token, const TokenTree& tree) const {
  std::vector<int32_t> slots(static_cast<size_t>(tree.size()), -1);
  if (!has_run(root_token)) return slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    const int32_t parent = tree.parents[i];
    const int32_t parent_slot = parent < 0 ? 0 : slots[static_cast<size_t>(parent)];
    for (size_t s = 1; parent_slot >= 0 && s < slots_.size(); ++s) {
      if (slots_[s].parent == parent_slot && slots_[s].token == tree.tokens[i]) slots[i] = static_cast<int32_t>(s);
    }
  }
  return slots;
}

bool Eagle3Drafter::read_inputs(int32_t root_token, const TokenTree& tree, Activations* out) {
  if (n_observed() == 0) return false;
  const auto lock = target_->lock_backend();
  make_states();
  std::vector<Eagle3Layer::Row> rows = {entry(n_observed() - 1, root_token)};
  const std::vector<int32_t> slots = slots_of(root_token, tree);
  const float* below_root = has_run(root_token) ? output(0) : rows[0].state;
  std::vector<const float*> below(slots.size());  // by node: the state that its children take
  for (size_t i = 0; i < slots.size(); ++i) {
    const int32_t parent = tree.parents[i];
    const float* state = parent < 0 ? below_root : below[static_cast<size_t>(parent)];
    rows.push_back({tree.tokens[i], state, 0, 0, 0, {}});
    below[i] = slots[i] >= 0 ? output(slots[i]) : state;
  }
  layer_.read(rows, out);
  return true;
}

bool Eagle3Drafter::read_states(int32_t root_token, const TokenTree& tree, std::vector<float>* out) {
  if (n_observed() == 0) return false;
  const auto lock = target_->lock_backend();
  make_states();
  const int64_t width = layer_.n_embd();
  const std::vector<int32_t> slots = slots_of(root_token, tree);
  out->resize((slots.size() + 1) * static_cast<size_t>(width));
  std::copy_n(has_run(root_token) ? output(0) : states_.data() + (n_observed() - 1) * width, width, out->data());
  for (size_t i = 0; i < slots.size(); ++i) {
    const float* above = out->data() + (tree.parents[i] + 1) * width;
    std::copy_n(slots[i] >= 0 ? output(slots[i]) : above, width, out->data() + (static_cast<int64_t>(i) + 1) * width);
  }
  return true;
}

std::vector<Eagle3Drafter::Expansion> Eagle3Drafter::expansions() const {
  std::vector<Expansion> list;
  for (size_t i = 0; i < kept_logits_.size(); ++i) {
    list.push_back({slots_[i].token, slots_[i].parent, kept_logits_[i]});
  }
  return list;
}

uint64_t Eagle3Drafter::memory_bytes() const {
  const size_t floats = states_.capacity() + outputs_.capacity() + logits_.capacity() + pending_features_.capacity();
  return layer_.memory_bytes() + ranker_.memory_bytes() + floats * sizeof(float);
}

std::unique_ptr<Drafter> make_eagle3_drafter(const std::string& argument, const std::shared_ptr<Model>& target) {
  const auto head = target->parts().get<Eagle3Head>(
      "eagle3", argument, [&] { return load_eagle3(argument, *target); },
      [](const Eagle3Head& h) { return h.arena.size_bytes(); });
  return std::make_unique<Eagle3Drafter>(target, head);
}

}  // namespace expertree
