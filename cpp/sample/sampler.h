// Chooses a token from a row of logits: the stage chain, then the argmax over what it left of
//   (logit - largest) / temperature + G(seed, position, token)          G: cpp/sample/gumbel.h
// with the lower token id on ties; at temperature 0 without G. Since G is a function of its arguments alone, the choice
// does not depend on how many tokens a step took, on drafts, or on other requests (contract X2).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpp/sample/options.h"
#include "cpp/sample/stage.h"

namespace expertree {

struct RankedToken {
  int32_t token;
  float score;  // (logit - largest) / temperature + G; temperature 0: logit - largest
  float probability;  // under the filtered distribution; temperature 0: that of temperature 1
};

struct SampledToken {
  int32_t token;
  float probability;  // under the filtered distribution; temperature 0: 1
};

// Logits of rows, one after the other: of all tokens, or the best of each row with their ids, best first (is_better).
struct RowLogits {
  const float* logits;
  int64_t width;  // of a row
  const int32_t* ids = nullptr;  // nullptr: of all tokens

  RowLogits from(int64_t row) const {
    return {logits + row * width, width, ids == nullptr ? nullptr : ids + row * width};
  }
};

// Holds 8 to 20 bytes of scratch memory per vocabulary entry and allocates nothing after construction. Not for two
// threads at once but where it says so; otherwise its calls are independent of each other. After an error it is as usable as before.
class Sampler {
 public:
  // Throws kInvalidRequest when an option is out of range.
  Sampler(const SamplerOptions& options, int64_t n_vocab);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  Sampler(Sampler&&) = default;
  Sampler& operator=(Sampler&&) = default;

  // logits: [n_vocab]; position: of the token being chosen, counted from 0; history: every token before it, the
  // drafted ancestors of a tree row included.
  // Throws kModelFormat when the model gave NaN, +inf, or -inf for every token; kInvalidRequest when logit_bias bans
  // all of them or the history holds a token outside the vocabulary.
  int32_t sample(const float* logits, int64_t position, const TokenHistory& history);
  // The same token from the first row; where it is the best of it, there are n_deciding() or more.
  int32_t sample(const RowLogits& row, int64_t position, const TokenHistory& history);
  // How many of a row's best logits decide the choice; 0: any may matter.
  int32_t n_deciding() const { return n_deciding_; }
  // The same token; costs one exp per surviving token more.
  SampledToken sample_with_probability(const float* logits, int64_t position, const TokenHistory& history);

  // The best out.size() tokens by score, best first: rank 0 is what sample() gives.
  // Returns how many were written: fewer when fewer survive the filters.
  int64_t rank(const float* logits, int64_t position, const TokenHistory& history, std::span<RankedToken> out);

  // What drafters use, on their own logits: with the target's seed and positions the choices agree wherever the
  // distributions do.
  // The stages that change logits, in place; logits: [n_vocab], finite or -inf.
  void adjust(float* logits, const TokenHistory& history);
  // rank() as if all tokens but these were banned, in time that depends on their number alone, without probabilities
  // and without adjust(). `tokens`: by rising id, at least one, finite logits; destroyed. For several threads at once.
  int64_t rank_among(std::span<Candidate> tokens, int64_t position, std::span<RankedToken> out) const;

  int64_t n_vocab() const { return n_vocab_; }
  bool greedy() const { return greedy_; }
  // Whether a stage changes logits (bias, penalties): if not, and greedy, the choice is the plain argmax.
  bool adjusts() const { return !adjusted_.empty(); }

 private:
  const float* adjusted_logits(const float* logits, int64_t position, const TokenHistory& history);
  void check_model_logits(const float* logits, int64_t position) const;
  int32_t sample_best(const RowLogits& row, int64_t position);
  Candidates survivors(const float* adjusted);
  void filter(Candidates* candidates) const;
  int64_t select(const Candidates& candidates, int64_t position, std::span<RankedToken> out) const;

  uint64_t seed_;
  int64_t n_vocab_;
  bool greedy_;
  int32_t n_deciding_;
  std::vector<std::unique_ptr<SamplerStage>> stages_;
  std::vector<float> adjusted_;  // [n_vocab], empty when no stage adjusts
  std::vector<Candidate> candidates_;  // [n_vocab]
};

}  // namespace expertree
