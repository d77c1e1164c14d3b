#include "cpp/spec/drafters/draft_ranker.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

// Draft tokens that are less likely than the best by more than e^12 are not looked at: with the noise of a step one of
// them is chosen once in some thousand steps, and looking costs more.
constexpr float kLeastLogit = -12.0f;

// A length that nobody asks for, but a caller may: bounds the list of a node.
constexpr int32_t kMostContinuations = 1024;

int32_t depth_below(int32_t node, const TokenTree& pool) {
  return node < 0 ? 1 : pool.depths[static_cast<size_t>(node)] + 1;
}

}  // namespace

DraftRanker::DraftRanker(std::string source, std::vector<int32_t> target_ids, int64_t n_draft, int64_t n_vocab)
    : source_(std::move(source)), target_ids_(std::move(target_ids)), n_draft_(n_draft), n_vocab_(n_vocab) {
  ET_CHECK(target_ids_.empty() || static_cast<int64_t>(target_ids_.size()) == n_draft);
  columns_.resize(static_cast<size_t>(target_ids_.empty() ? std::min(n_draft, n_vocab) : n_draft));
  std::iota(columns_.begin(), columns_.end(), 0);
  std::ranges::sort(columns_, {}, [this](int32_t column) { return target_id(column); });
}

void DraftRanker::begin(std::span<const int32_t> history) {
  learn(history);
  ranked_.clear();
  pool_ = {};
  history_.assign(history.begin(), history.end());
}

// Walks the last draft down the tokens that were really chosen.
void DraftRanker::learn(std::span<const int32_t> history) {
  if (ranked_.empty() || history.size() <= history_.size()) return;
  if (!std::equal(history_.begin(), history_.end(), history.begin())) return;
  int32_t node = -1;
  for (size_t i = history_.size(); i < history.size(); ++i) {
    const auto list = std::ranges::find(ranked_, node, &Ranked::node);
    if (list == ranked_.end()) return;
    calibration_.learn(list->tokens, depth_below(node, pool_), history[i]);
    const int32_t parent = node;
    for (int32_t child = parent + 1; child < pool_.size() && node == parent; ++child) {
      const auto c = static_cast<size_t>(child);
      if (pool_.parents[c] == parent && pool_.tokens[c] == history[i]) node = child;
    }
    if (node == parent) return;
  }
}

void DraftRanker::check_finite(const float* logits, int64_t n_rows) const {
  float zero[16] = {};  // stay 0 while every value is finite; several, so that the compiler may use vectors
  const int64_t n = n_rows * n_draft_;
  for (int64_t i = 0; i < n / 16 * 16; i += 16) {
    for (int j = 0; j < 16; ++j) zero[j] += logits[i + j] * 0.0f;
  }
  for (int64_t i = n / 16 * 16; i < n; ++i) zero[i % 16] += logits[i] * 0.0f;
  if (std::ranges::all_of(zero, [](float x) { return x == 0.0f; })) return;
  throw Error(ErrorCode::kModelFormat, source_ +
                                           ": the drafter gave a value that is not a finite number; its weights " +
                                           "are damaged. Check the file's hash and get it again, or leave it off");
}

std::vector<Continuation> DraftRanker::most_probable(float* logits, int32_t top_k, const KernelTable& kernels) const {
  const int64_t n = target_ids_.empty() ? std::min(n_draft_, n_vocab_) : n_draft_;
  kernels.softmax(logits, n, logits);
  std::vector<Continuation> best;
  const auto wanted = static_cast<size_t>(std::min<int64_t>(top_k, n));
  for (int64_t i = 0; i < n; ++i) {
    if (best.size() == wanted && logits[i] <= best.back().probability) continue;
    const auto place = std::ranges::find_if(best, [&](const Continuation& c) { return c.probability < logits[i]; });
    best.insert(place, {target_id(i), logits[i]});
    if (best.size() > wanted) best.pop_back();
  }
  std::erase_if(best, [](const Continuation& c) { return !(c.probability > 0.0f); });
  return best;
}

// Of the node that path_ leads to.
int64_t DraftRanker::rank_row(const float* logits, Sampler& sampler, std::span<RankedToken> out) {
  const auto position = static_cast<int64_t>(history_.size() + path_.size());
  if (!sampler.adjusts()) {
    float best = kNoLogit;
    for (const int32_t column : columns_) best = std::max(best, logits[column]);
    likely_.clear();
    for (const int32_t column : columns_) {
      if (logits[column] >= best + kLeastLogit) likely_.push_back({target_id(column), logits[column]});
    }
    return sampler.rank_among(likely_, position, out);
  }
  spread_.resize(static_cast<size_t>(n_vocab_), kNoLogit);  // the ids written are the same every time
  for (const int32_t column : columns_) spread_[static_cast<size_t>(target_id(column))] = logits[column];
  try {
    return sampler.rank(spread_.data(), position, TokenHistory{history_, path_}, out);
  } catch (const Error& error) {
    // The request's logit_bias bans the whole draft vocabulary: nothing to propose, which is no fault.
    if (error.code() != ErrorCode::kInvalidRequest) throw;
    return 0;
  }
}

std::vector<Continuation> DraftRanker::coupled(const float* logits, int32_t node, const TokenTree& pool, int32_t top_k,
                                               Sampler& sampler) {
  path_.clear();
  for (int32_t at = node; at >= 0; at = pool.parents[static_cast<size_t>(at)]) {
    path_.push_back(pool.tokens[static_cast<size_t>(at)]);
  }
  std::ranges::reverse(path_);
  Ranked found{node, std::vector<RankedToken>(static_cast<size_t>(std::min<int64_t>(top_k, std::ssize(columns_))))};
  found.tokens.resize(static_cast<size_t>(rank_row(logits, sampler, found.tokens)));
  std::vector<Continuation> list;
  const std::vector<float> chances = calibration_.chances(found.tokens, depth_below(node, pool));
  for (size_t i = 0; i < found.tokens.size(); ++i) {
    const float probability = sampler.greedy() ? found.tokens[i].probability : chances[i];
    if (probability > 0.0f) list.push_back({found.tokens[i].token, probability});
  }
  if (!sampler.greedy()) ranked_.push_back(std::move(found));
  return list;
}

std::vector<std::vector<Continuation>> DraftRanker::rank(float* logits, int64_t n_rows,
                                                         std::span<const int32_t> frontier, const TokenTree& pool,
                                                         int32_t top_k, Sampler& sampler, CpuBackend& backend) {
  ET_CHECK(n_rows == 1 || n_rows == static_cast<int64_t>(frontier.size()));
  check_finite(logits, n_rows);
  top_k = std::clamp(top_k, 0, kMostContinuations);
  std::vector<std::vector<Continuation>> lists(frontier.size());
  if (sampler.greedy() && !sampler.adjusts()) {
    backend.pool().parallel_for(n_rows, [&](int64_t r) {
      lists[static_cast<size_t>(r)] = most_probable(logits + r * n_draft_, top_k, backend.kernels());
    });
    for (size_t i = static_cast<size_t>(n_rows); i < lists.size(); ++i) lists[i] = lists[0];
    return lists;
  }
  for (size_t i = 0; i < frontier.size(); ++i) {
    const float* row = logits + (n_rows == 1 ? 0 : static_cast<int64_t>(i)) * n_draft_;
    lists[i] = coupled(row, frontier[i], pool, top_k, sampler);
  }
  pool_ = pool;
  return lists;
}

}  // namespace expertree
