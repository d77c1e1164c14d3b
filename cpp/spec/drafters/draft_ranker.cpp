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

// Lanes, so that the compiler may use vectors.
float largest_of(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  float most[kLanes];
  std::fill_n(most, kLanes, kNoLogit);
  for (int64_t i = 0; i < n / kLanes * kLanes; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) most[lane] = most[lane] < x[i + lane] ? x[i + lane] : most[lane];
  }
  for (int64_t i = n / kLanes * kLanes; i < n; ++i) most[0] = std::max(most[0], x[i]);
  return *std::max_element(most, most + kLanes);
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

// What the sampler's bias and penalties make of one node's logits.
void DraftRanker::adjust(const float* logits, int32_t node, const TokenTree& pool, Sampler& sampler, float* adjusted) {
  std::vector<int32_t> path;
  for (int32_t at = node; at >= 0; at = pool.parents[static_cast<size_t>(at)]) {
    path.push_back(pool.tokens[static_cast<size_t>(at)]);
  }
  std::ranges::reverse(path);
  spread_.resize(static_cast<size_t>(n_vocab_), kNoLogit);  // the ids written are the same every time
  for (const int32_t column : columns_) spread_[static_cast<size_t>(target_id(column))] = logits[column];
  sampler.adjust(spread_.data(), {history_, path});
  for (const int32_t column : columns_) adjusted[column] = spread_[static_cast<size_t>(target_id(column))];
}

std::vector<Continuation> DraftRanker::most_probable(float* logits, int32_t top_k, const KernelTable& kernels) const {
  kernels.softmax(logits, n_columns(), logits);
  std::vector<Continuation> best;
  const auto wanted = static_cast<size_t>(std::min<int64_t>(top_k, n_columns()));
  for (int64_t i = 0; i < n_columns(); ++i) {
    if (best.size() == wanted && logits[i] <= best.back().probability) continue;
    const auto place = std::ranges::find_if(best, [&](const Continuation& c) { return c.probability < logits[i]; });
    best.insert(place, {target_id(i), logits[i]});
    if (best.size() > wanted) best.pop_back();
  }
  std::erase_if(best, [](const Continuation& c) { return !(c.probability > 0.0f); });
  return best;
}

// ranked: as long as the list that is wanted; cut to what there is. Runs on several threads, each with its own scratch.
void DraftRanker::rank_coupled(const float* logits, int64_t position, const Sampler& sampler,
                               std::vector<Candidate>* likely, std::vector<RankedToken>* ranked) const {
  const float best = largest_of(logits, n_columns());
  if (best == kNoLogit) return ranked->clear();  // the request bans the whole draft vocabulary
  likely->resize(columns_.size());
  size_t n = 0;
  for (const int32_t column : columns_) {
    (*likely)[n] = {target_id(column), logits[column]};
    n += logits[column] >= best + kLeastLogit ? 1 : 0;
  }
  ranked->resize(static_cast<size_t>(sampler.rank_among(std::span(*likely).first(n), position, *ranked)));
}

std::vector<std::vector<Continuation>> DraftRanker::coupled(const float* logits, int64_t stride,
                                                            std::span<const int32_t> frontier, const TokenTree& pool,
                                                            int32_t top_k, const Sampler& sampler,
                                                            CpuBackend& backend) {
  const int32_t depth = depth_below(frontier[0], pool);
  const auto wanted = static_cast<size_t>(std::min<int64_t>(top_k, n_columns()));
  const size_t first = ranked_.size();
  for (const int32_t node : frontier) ranked_.push_back({node, std::vector<RankedToken>(wanted)});
  // A task for each thread, with scratch of its own.
  const auto n_tasks = std::min<int64_t>(std::ssize(frontier), backend.n_threads());
  likely_.resize(static_cast<size_t>(backend.n_threads()));
  backend.pool().parallel_for(n_tasks, [&](int64_t task) {
    for (int64_t i = task; i < std::ssize(frontier); i += n_tasks) {
      rank_coupled(logits + i * stride, std::ssize(history_) + depth - 1, sampler, &likely_[static_cast<size_t>(task)],
                   &ranked_[first + static_cast<size_t>(i)].tokens);
    }
  });
  std::vector<std::vector<Continuation>> lists(frontier.size());
  for (size_t i = 0; i < frontier.size(); ++i) {
    const std::vector<RankedToken>& tokens = ranked_[first + i].tokens;
    const std::vector<float> chances = calibration_.chances(tokens, depth);
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (chances[t] > 0.0f) lists[i].push_back({tokens[t].token, chances[t]});
    }
  }
  pool_ = pool;
  return lists;
}

std::vector<std::vector<Continuation>> DraftRanker::rank(float* logits, int64_t n_rows,
                                                         std::span<const int32_t> frontier, const TokenTree& pool,
                                                         int32_t top_k, Sampler& sampler, CpuBackend& backend) {
  ET_CHECK(n_rows == 1 || n_rows == std::ssize(frontier));
  check_finite(logits, n_rows);
  top_k = std::clamp(top_k, 0, kMostContinuations);
  if (sampler.adjusts()) {
    adjusted_.resize(frontier.size() * static_cast<size_t>(n_draft_));
    for (size_t i = 0; i < frontier.size(); ++i) {
      const float* row = logits + (n_rows == 1 ? 0 : static_cast<int64_t>(i)) * n_draft_;
      adjust(row, frontier[i], pool, sampler, adjusted_.data() + static_cast<int64_t>(i) * n_draft_);
    }
    logits = adjusted_.data();
    n_rows = std::ssize(frontier);
  }
  const int64_t stride = n_rows == 1 ? 0 : n_draft_;
  if (!sampler.greedy()) return coupled(logits, stride, frontier, pool, top_k, sampler, backend);
  std::vector<std::vector<Continuation>> lists(frontier.size());
  backend.pool().parallel_for(n_rows, [&](int64_t r) {
    lists[static_cast<size_t>(r)] = most_probable(logits + r * n_draft_, top_k, backend.kernels());
  });
  for (size_t i = static_cast<size_t>(n_rows); i < lists.size(); ++i) lists[i] = lists[0];
  return lists;
}

}  // namespace expertree
