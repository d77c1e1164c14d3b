// EAGLE-2's way to grow a tree (arXiv 2406.16858): at each depth the top_k best nodes of the last depth are expanded to
// their top_k continuations; of all of them the max_nodes best by score are kept.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpp/spec/drafter.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

struct Continuation {
  int32_t token;
  float probability;  // given its parent, in (0, 1]
};

// Continuations of each node of `frontier` (one list per node, any order; the best top_k of a list count). The first
// call has the root alone: {-1}. `pool` holds all nodes so far.
using Expand =
    std::function<std::vector<std::vector<Continuation>>(std::span<const int32_t> frontier, const TokenTree& pool)>;

TokenTree grow_tree(const DraftLimits& limits, const Expand& expand);

}  // namespace expertree
