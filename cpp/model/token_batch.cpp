#include "cpp/model/token_batch.h"

#include <string>

#include "cpp/base/error.h"

namespace expertree {

TokenBatch TokenBatch::make(std::span<const int32_t> tokens, std::span<const int32_t> parents, int64_t n_vocab) {
  if (tokens.empty()) {
    throw Error(ErrorCode::kInvalidRequest, "no tokens to run; give at least one");
  }
  if (!parents.empty() && parents.size() != tokens.size()) {
    throw Error(ErrorCode::kInvalidRequest, "got " + std::to_string(tokens.size()) + " tokens and " +
                                                std::to_string(parents.size()) + " parents; give one parent per token");
  }
  TokenBatch batch;
  batch.tokens.assign(tokens.begin(), tokens.end());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= n_vocab) {
      throw Error(ErrorCode::kInvalidRequest, "token id " + std::to_string(tokens[i]) + " at index " +
                                                  std::to_string(i) + " is outside the vocabulary of " +
                                                  std::to_string(n_vocab) +
                                                  " tokens; encode the text with this model's own tokenizer");
    }
    const int32_t parent = parents.empty() ? static_cast<int32_t>(i) - 1 : parents[i];
    if (parent < -1 || parent >= static_cast<int32_t>(i)) {
      throw Error(ErrorCode::kInvalidRequest, "parent " + std::to_string(parent) + " of row " + std::to_string(i) +
                                                  " must be -1 or an earlier row");
    }
    batch.parents.push_back(parent);
    batch.depths.push_back(parent < 0 ? 0 : batch.depths[static_cast<size_t>(parent)] + 1);
  }
  return batch;
}

}  // namespace expertree
