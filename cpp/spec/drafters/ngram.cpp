#include "cpp/spec/drafters/ngram.h"

#include <algorithm>

#include "cpp/base/error.h"

namespace expertree {
namespace {

// Shorter suffixes add little after this many.
constexpr int kSuffixes = 16;

// Against method C of prediction by partial matching, which is for an ending of one letter: answers repeat their own
// words less than that, and a draft that fails costs time.
constexpr double kDoubt = 3.0;

// The chance that what follows is none of what followed this suffix before, the less the longer the suffix is.
double escape(double n_distinct, double n_seen, int32_t length) {
  return kDoubt * n_distinct / (n_seen * static_cast<double>(length) + kDoubt * n_distinct);
}

}  // namespace

void NgramDrafter::observe(const CommittedRows& rows) {
  ET_CHECK(rows.first_position == n_observed_);
  for (const int32_t token : rows.tokens) {
    const auto position = static_cast<size_t>(n_observed_++);
    if (position < indexed_.size() && indexed_[position] != token) cut(position);
  }
}

void NgramDrafter::truncate(int64_t length) {
  n_observed_ = std::min(n_observed_, length);
  cut(static_cast<size_t>(n_observed_));
}

void NgramDrafter::cut(size_t length) {
  if (indexed_.size() <= length) return;
  indexed_.resize(length);
  is_cut_ = true;
}

// An automaton cannot forget, so it is built again after a cut: a microsecond or less per token.
void NgramDrafter::index(std::span<const int32_t> history) {
  for (auto i = static_cast<size_t>(n_observed_); i < indexed_.size(); ++i) {
    if (i >= history.size() || indexed_[i] != history[i]) cut(i);
  }
  if (is_cut_) {
    text_.clear();
    indexed_.clear();
    is_cut_ = false;
  }
  for (const int32_t token : history.subspan(indexed_.size())) {
    text_.extend(token);
    indexed_.push_back(token);
  }
}

std::vector<Continuation> NgramDrafter::continuations(int32_t state, size_t enough) const {
  std::vector<Continuation> found;
  double weight = 1.0;
  for (int i = 0; i < kSuffixes && state > SuffixAutomaton::kRoot; ++i, state = text_.link(state)) {
    const std::span<const SuffixAutomaton::Edge> edges = text_.edges(state);
    double n_seen = 0.0;
    for (const auto& edge : edges) n_seen += text_.count(edge.state);
    if (edges.empty()) continue;
    const double escaped = escape(static_cast<double>(edges.size()), n_seen, text_.length(state));
    for (const auto& edge : edges) {
      const auto share = static_cast<float>(weight * (1.0 - escaped) * text_.count(edge.state) / n_seen);
      const auto known = std::ranges::find(found, edge.token, &Continuation::token);
      if (known == found.end()) {
        found.push_back({edge.token, share});
      } else {
        known->probability += share;
      }
    }
    weight *= escaped;
    if (found.size() >= enough) break;
  }
  return found;
}

// Of the longest suffix of the state's string and the token that occurs in the text.
int32_t NgramDrafter::state_after(int32_t state, int32_t token) const {
  for (; state >= 0; state = text_.link(state)) {
    const std::span<const SuffixAutomaton::Edge> edges = text_.edges(state);
    const auto edge = std::ranges::lower_bound(edges, token, {}, &SuffixAutomaton::Edge::token);
    if (edge != edges.end() && edge->token == token) return edge->state;
  }
  return SuffixAutomaton::kRoot;
}

TokenTree NgramDrafter::draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler&) {
  index(history);
  const int32_t root_state = text_.repeated_suffix();
  std::vector<int32_t> states;  // of the pool's nodes
  return grow_tree(limits, [&](std::span<const int32_t> frontier, const TokenTree& pool) {
    for (auto node = states.size(); node < pool.tokens.size(); ++node) {
      const int32_t parent = pool.parents[node];
      states.push_back(state_after(parent < 0 ? root_state : states[static_cast<size_t>(parent)], pool.tokens[node]));
    }
    std::vector<std::vector<Continuation>> lists;
    for (const int32_t node : frontier) {
      const int32_t state = node < 0 ? root_state : states[static_cast<size_t>(node)];
      lists.push_back(continuations(state, static_cast<size_t>(limits.top_k)));
    }
    return lists;
  });
}

}  // namespace expertree
