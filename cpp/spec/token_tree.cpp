#include "cpp/spec/token_tree.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "cpp/base/error.h"

namespace expertree {
namespace {

[[noreturn]] void throw_bad(const std::string& who, const char* what, int64_t node, const std::string& why) {
  throw Error(ErrorCode::kInvalidRequest, who + " gave a bad " + what + ": node " + std::to_string(node) + " " + why);
}

}  // namespace

int32_t TokenTree::add(int32_t token, int32_t parent, float score) {
  ET_CHECK(parent >= -1 && parent < size());
  if (parent >= 0) score = std::min(score, scores[static_cast<size_t>(parent)]);
  score = std::clamp(score, std::numeric_limits<float>::min(), 1.0f);
  for (int64_t i = parent + 1; i < size(); ++i) {
    const auto node = static_cast<size_t>(i);
    if (parents[node] != parent || tokens[node] != token) continue;
    scores[node] = std::max(scores[node], score);
    return static_cast<int32_t>(i);
  }
  tokens.push_back(token);
  parents.push_back(parent);
  depths.push_back(parent < 0 ? 1 : depths[static_cast<size_t>(parent)] + 1);
  scores.push_back(score);
  return static_cast<int32_t>(size() - 1);
}

void TokenTree::check(const char* drafter, int64_t n_vocab) const {
  const std::string who = std::string("drafter ") + drafter;
  const size_t n = tokens.size();
  if (parents.size() != n || depths.size() != n || scores.size() != n) {
    throw Error(ErrorCode::kInvalidRequest,
                who + " gave a bad tree: tokens, parents and scores must be equally many; found " + std::to_string(n) +
                    ", " + std::to_string(parents.size()) + " and " + std::to_string(scores.size()));
  }
  for (int64_t i = 0; i < size(); ++i) {
    const auto node = static_cast<size_t>(i);
    const int32_t parent = parents[node];
    if (tokens[node] < 0 || tokens[node] >= n_vocab) {
      throw_bad(who, "tree", i,
                "has token " + std::to_string(tokens[node]) + "; the vocabulary has " + std::to_string(n_vocab) +
                    " tokens. A drafter must use the model's own token ids");
    }
    if (parent < -1 || parent >= i) {
      throw_bad(who, "tree", i, "has parent " + std::to_string(parent) + "; expected an earlier node, or -1");
    }
    if (depths[node] != (parent < 0 ? 1 : depths[static_cast<size_t>(parent)] + 1)) {
      throw_bad(who, "tree", i, "has depth " + std::to_string(depths[node]) + ", which is not one below its parent");
    }
    const float above = parent < 0 ? 1.0f : scores[static_cast<size_t>(parent)];
    if (!(scores[node] > 0.0f && scores[node] <= above)) {
      throw_bad(who, "tree", i,
                "has score " + std::to_string(scores[node]) + "; expected above 0 and at most its parent's, " +
                    std::to_string(above));
    }
    for (int64_t j = parent + 1; j < i; ++j) {
      if (parents[static_cast<size_t>(j)] == parent && tokens[static_cast<size_t>(j)] == tokens[node]) {
        throw_bad(who, "tree", i,
                  "repeats token " + std::to_string(tokens[node]) + " of its sibling " + std::to_string(j));
      }
    }
  }
}

void TokenTree::check_selection(const char* selector, std::span<const int32_t> nodes) const {
  const std::string who = std::string("selector ") + selector;
  std::vector<bool> chosen(tokens.size(), false);
  int64_t last = -1;
  for (const int32_t node : nodes) {
    if (node < 0 || node >= size()) {
      throw_bad(who, "selection", node, "is not in the tree, which has " + std::to_string(size()) + " nodes");
    }
    if (node <= last) {
      throw_bad(who, "selection", node, "comes after node " + std::to_string(last) + "; give each node once, rising");
    }
    const int32_t parent = parents[static_cast<size_t>(node)];
    if (parent >= 0 && !chosen[static_cast<size_t>(parent)]) {
      throw_bad(who, "selection", node, "is chosen without its parent " + std::to_string(parent));
    }
    chosen[static_cast<size_t>(node)] = true;
    last = node;
  }
}

TokenTree TokenTree::best(int64_t max_nodes, int32_t max_depth) const {
  std::vector<int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t node) { return depths[static_cast<size_t>(node)] > max_depth; });
  // No child scores above its parent, and the sort is stable, so any prefix is closed under parents.
  std::ranges::stable_sort(
      order, [&](int32_t a, int32_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
  if (static_cast<int64_t>(order.size()) > max_nodes)
    order.resize(static_cast<size_t>(std::max<int64_t>(0, max_nodes)));
  std::vector<int32_t> placed(tokens.size(), -1);
  TokenTree kept;
  for (const int32_t node : order) {
    const auto i = static_cast<size_t>(node);
    const int32_t parent = parents[i] < 0 ? -1 : placed[static_cast<size_t>(parents[i])];
    placed[i] = static_cast<int32_t>(kept.size());
    kept.tokens.push_back(tokens[i]);
    kept.parents.push_back(parent);
    kept.depths.push_back(depths[i]);
    kept.scores.push_back(scores[i]);
  }
  return kept;
}

}  // namespace expertree
