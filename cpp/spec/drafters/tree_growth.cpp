#include "cpp/spec/drafters/tree_growth.h"

#include <algorithm>
#include <numeric>

#include "cpp/base/error.h"

namespace expertree {

TokenTree grow_tree(const DraftLimits& limits, const Expand& expand) {
  TokenTree pool;
  std::vector<int32_t> frontier = {-1};
  const auto top_k = static_cast<size_t>(limits.top_k);
  for (int32_t depth = 1; depth <= limits.max_depth && !frontier.empty(); ++depth) {
    std::vector<std::vector<Continuation>> lists = expand(frontier, pool);
    ET_CHECK(lists.size() == frontier.size());
    const auto first = static_cast<int32_t>(pool.size());
    for (size_t i = 0; i < lists.size(); ++i) {
      std::ranges::stable_sort(lists[i], std::greater(), &Continuation::probability);
      if (lists[i].size() > top_k) lists[i].resize(top_k);
      const float above = frontier[i] < 0 ? 1.0f : pool.scores[static_cast<size_t>(frontier[i])];
      for (const Continuation& next : lists[i]) {
        const float score = above * next.probability;
        if (score >= limits.least_score) pool.add(next.token, frontier[i], score);
      }
    }
    frontier.resize(static_cast<size_t>(pool.size() - first));
    std::iota(frontier.begin(), frontier.end(), first);
    std::ranges::stable_sort(frontier, [&](int32_t a, int32_t b) {
      return pool.scores[static_cast<size_t>(a)] > pool.scores[static_cast<size_t>(b)];
    });
    if (frontier.size() > top_k) frontier.resize(top_k);
  }
  return pool.best(limits.max_nodes, limits.max_depth);
}

}  // namespace expertree
