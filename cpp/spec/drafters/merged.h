// Several drafters, whose trees become one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpp/spec/drafter.h"

namespace expertree {

// Trees are merged by the path of tokens. A node's score is the weighted sum of its scores in the trees that have it, a
// tree without it counting 0: the mixture of what the drafters hold for likely. That is sound where the sum over drafters
// (one event counted twice) or the largest score (siblings of different drafters would add up to more than 1) is not: it
// stays a probability over continuations, and no child scores above its parent. What is left of over- or underconfidence
// is the selector's to calibrate, as with one drafter.
//
// The weights are learned from what came next: of each draft the share of every drafter in the mixture's probability of
// the true token, one step of the EM algorithm for mixture weights. A drafter with an empty tree has nothing to say at
// that place: it neither counts nor learns (sleeping experts, Freund, Schapire, Singer and Warmuth 1997), so n-grams that
// seldom find anything do not lose their weight while they are silent.
//
// Each drafter may fill the whole budget of nodes, and the best of the merged tree are kept: the budget goes to whoever
// has the likelier nodes at this place.
class MergedDrafter final : public Drafter {
 public:
  // At least one part. n_embd: of the target.
  MergedDrafter(std::vector<std::unique_ptr<Drafter>> parts, int64_t n_embd);

  const char* name() const override { return name_.c_str(); }
  FeatureRequest features() const override { return features_; }
  void observe(const CommittedRows& rows) override;
  void truncate(int64_t length) override;
  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) override;
  HeadInputs* head_inputs() override;
  uint64_t memory_bytes() const override;

  std::span<const double> weights() const { return weights_; }

 private:
  // What a drafter said about the token after the root; empty: nothing.
  using FirstTokens = std::vector<std::pair<int32_t, float>>;

  void learn(std::span<const int32_t> history);
  TokenTree merge(std::span<const TokenTree> trees) const;

  std::vector<std::unique_ptr<Drafter>> parts_;
  int64_t n_embd_;
  std::string name_;
  FeatureRequest features_;                // all that a part asks for
  std::vector<std::vector<size_t>> taps_;  // by part: its layers' places among those
  std::vector<double> weights_;            // by part, their sum 1
  std::vector<FirstTokens> said_;          // by part, in the last draft
  size_t n_history_ = 0;                   // tokens then; 0: there is nothing to learn from
};

}  // namespace expertree
