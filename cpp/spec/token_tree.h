// A tree of drafted tokens that continues a sequence. The root is the sequence's last token, which has been sampled but
// not yet run through the target; it is no node of the tree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertree {

// Parallel arrays; parents come before their children.
struct TokenTree {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;  // index of an earlier node; -1: the root
  std::vector<int32_t> depths;  // 1 for the root's children
  // The drafter's probability that the whole path down to the node is what the target will emit, in (0, 1]; never more
  // than the parent's.
  std::vector<float> scores;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }

  // The node's index. A child with the same token under the same parent is kept once, with the larger score.
  int32_t add(int32_t token, int32_t parent, float score);

  // Throws kInvalidRequest, naming `drafter`, unless this is a tree as described above with ids below n_vocab.
  void check(const char* drafter, int64_t n_vocab) const;
  // Throws kInvalidRequest, naming `selector`, unless these are nodes, rising and closed under parents.
  void check_selection(const char* selector, std::span<const int32_t> nodes) const;
  // The max_nodes best by score, no deeper than max_depth; parents stay before their children.
  TokenTree best(int64_t max_nodes, int32_t max_depth) const;
};

}  // namespace expertree
