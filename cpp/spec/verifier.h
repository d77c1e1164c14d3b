// What the target says to a drafted tree: the walk from the root, sampling at each row exactly as plain decoding would.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/model/token_batch.h"
#include "cpp/sample/sampler.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

struct VerifyLimits {
  int64_t max_tokens;  // at least 1
  std::span<const int32_t> end_tokens;  // the walk stops after one of these
};

struct VerifiedPath {
  std::vector<int32_t> rows;  // of the batch [root, selected...] that are to be kept: the root's, then the path's
  std::vector<int32_t> nodes;  // of the tree, likewise without the root
  std::vector<int32_t> tokens;  // emitted: the tokens of `nodes` and the one sampled after them; rows.size() in all
};

// The rows to run: the root, then the selected nodes in order.
TokenBatch verification_batch(int32_t root_token, const TokenTree& tree, std::span<const int32_t> selected,
                              int64_t n_vocab);

// logits: of the root's row and the selected nodes' rows in order. history: all tokens of
// the sequence, the root the last. Each token is the target's own sample, so the text does not depend on tree or
// selection (METHODS "Verification"; the coupling by shared noise is treated by Daliri, Musco and Suresh 2024).
// Throws what Sampler::sample throws.
VerifiedPath verify(const TokenTree& tree, std::span<const int32_t> selected, const RowLogits& logits,
                    std::span<const int32_t> history, const VerifyLimits& limits, Sampler& sampler);

}  // namespace expertree
