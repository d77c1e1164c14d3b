// What one forward pass is given: a chain or a tree of tokens that continues a sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertree {

// Rows in an order in which parents come before children.
struct TokenBatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;    // index of an earlier row; -1: the sequence's last committed token
  std::vector<int32_t> depths;     // 0 for rows without a parent; position = committed length + depth

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }

  // Checks ids against the vocabulary and parents against the order; throws kInvalidRequest. Empty parents: a chain.
  static TokenBatch make(std::span<const int32_t> tokens, std::span<const int32_t> parents, int64_t n_vocab);
};

}  // namespace expertree
