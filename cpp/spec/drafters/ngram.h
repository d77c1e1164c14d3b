// Prompt lookup: what followed the last tokens when they came earlier in this sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/spec/drafter.h"
#include "cpp/spec/drafters/suffix_automaton.h"
#include "cpp/spec/drafters/tree_growth.h"

namespace expertree {

// Continuations of the longest suffix that occurs earlier, then of shorter ones. A continuation's probability is its
// share of the occurrences, over all these suffixes, each weighed by the chance that no longer one has the answer
// (prediction by partial matching, Cleary and Witten 1984). Needs no model and takes microseconds; text that repeats
// itself is what it is good for. It is not coupled with the sampler's noise: its few candidates carry no distribution
// that would come near the target's.
class NgramDrafter final : public Drafter {
 public:
  const char* name() const override { return "ngram"; }
  void observe(const CommittedRows& rows) override;
  void truncate(int64_t length) override;
  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) override;

 private:
  void cut(size_t length);
  void index(std::span<const int32_t> history);
  std::vector<Continuation> continuations(int32_t state, size_t enough) const;
  int32_t state_after(int32_t state, int32_t token) const;

  SuffixAutomaton text_;
  std::vector<int32_t> indexed_;  // observed tokens, as far as drafting has needed them, and perhaps a root not yet run
  bool is_cut_ = false;  // text_ holds more than indexed_
  int64_t n_observed_ = 0;
};

}  // namespace expertree
