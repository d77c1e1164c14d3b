#include "cpp/spec/verifier.h"

#include <algorithm>

#include "cpp/base/error.h"

namespace expertree {

TokenBatch verification_batch(int32_t root_token, const TokenTree& tree, std::span<const int32_t> selected,
                              int64_t n_vocab) {
  std::vector<int32_t> tokens = {root_token};
  std::vector<int32_t> parents = {-1};
  for (const int32_t node : selected) {
    const int32_t parent = tree.parents[static_cast<size_t>(node)];
    tokens.push_back(tree.tokens[static_cast<size_t>(node)]);
    // Selections rise and are closed under parents, so the parent is found.
    parents.push_back(
        parent < 0 ? 0 : static_cast<int32_t>(1 + (std::ranges::lower_bound(selected, parent) - selected.begin())));
  }
  return TokenBatch::make(tokens, parents, n_vocab);
}

VerifiedPath verify(const TokenTree& tree, std::span<const int32_t> selected, const RowLogits& logits,
                    std::span<const int32_t> history, const VerifyLimits& limits, Sampler& sampler) {
  ET_CHECK(limits.max_tokens >= 1);
  VerifiedPath path;
  int32_t node = -1;
  int64_t row = 0;
  while (true) {
    path.rows.push_back(static_cast<int32_t>(row));
    // path.tokens are the row's drafted ancestors, itself included.
    const auto position = static_cast<int64_t>(history.size() + path.tokens.size());
    const int32_t token = sampler.sample(logits.from(row), position, TokenHistory{history, path.tokens});
    path.tokens.push_back(token);
    if (static_cast<int64_t>(path.tokens.size()) == limits.max_tokens) return path;
    if (std::ranges::find(limits.end_tokens, token) != limits.end_tokens.end()) return path;
    const auto child = std::ranges::find_if(selected, [&](int32_t candidate) {
      const auto i = static_cast<size_t>(candidate);
      return tree.parents[i] == node && tree.tokens[i] == token;
    });
    if (child == selected.end()) return path;
    node = *child;
    row = 1 + (child - selected.begin());
    path.nodes.push_back(node);
  }
}

}  // namespace expertree
