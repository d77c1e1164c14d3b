#include "cpp/spec/drafters/suffix_automaton.h"

#include <algorithm>

namespace expertree {

void SuffixAutomaton::clear() {
  states_.clear();
  states_.push_back({0, -1, 0, {}});
  last_ = kRoot;
}

SuffixAutomaton::Edge* SuffixAutomaton::find(int32_t s, int32_t token) {
  std::vector<Edge>& edges = state(s).edges;
  const auto at = std::ranges::lower_bound(edges, token, {}, &Edge::token);
  return at == edges.end() || at->token != token ? nullptr : &*at;
}

// `to` stands for strings longer than from + token: those of at most that length get a state of their own.
int32_t SuffixAutomaton::split(int32_t from, int32_t token, int32_t to) {
  const auto copy = static_cast<int32_t>(states_.size());
  State twin = state(to);
  twin.length = state(from).length + 1;
  states_.push_back(std::move(twin));
  state(to).link = copy;
  for (int32_t s = from; s >= 0; s = state(s).link) {
    Edge* edge = find(s, token);
    if (edge == nullptr || edge->state != to) break;
    edge->state = copy;
  }
  return copy;
}

void SuffixAutomaton::extend(int32_t token) {
  const auto added = static_cast<int32_t>(states_.size());
  states_.push_back({state(last_).length + 1, kRoot, 1, {}});
  int32_t s = last_;
  Edge* edge = nullptr;
  for (; s >= 0 && (edge = find(s, token)) == nullptr; s = state(s).link) {
    std::vector<Edge>& edges = state(s).edges;
    edges.insert(std::ranges::lower_bound(edges, token, {}, &Edge::token), {token, added});
  }
  if (s >= 0) {
    const int32_t to = edge->state;
    state(added).link = state(to).length == state(s).length + 1 ? to : split(s, token, to);
  }
  last_ = added;
  int32_t suffix = state(added).link;
  for (int i = 0; i < kCountedSuffixes && suffix > kRoot; ++i, suffix = state(suffix).link) ++state(suffix).count;
}

}  // namespace expertree
