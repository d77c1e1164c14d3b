// The order in which most published rules look at a tree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cpp/spec/token_tree.h"

namespace expertree {

// All nodes by falling score, the earlier node on ties, so that parents come before their children.
inline std::vector<int32_t> by_score(const TokenTree& tree) {
  // No more than the parent's, whatever the drafter said.
  std::vector<float> capped(tree.scores);
  for (size_t v = 0; v < capped.size(); ++v) {
    if (tree.parents[v] >= 0) capped[v] = std::min(capped[v], capped[static_cast<size_t>(tree.parents[v])]);
  }
  std::vector<int32_t> order(capped.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return capped[static_cast<size_t>(a)] > capped[static_cast<size_t>(b)];
  });
  return order;
}

// The first n of them, rising.
inline std::vector<int32_t> best_nodes(std::vector<int32_t> order, size_t n) {
  order.resize(std::min(n, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace expertree
