// One step of the sampler chain. A new stage is one file in cpp/sample/stages/ and one row in stage_table.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cpp/sample/options.h"

namespace expertree {

// The tokens before the one being chosen: what is committed, then the drafted ancestors of a tree row, root first.
// Two spans, so that a row of a tree costs no copy of the history.
struct TokenHistory {
  std::span<const int32_t> committed;
  std::span<const int32_t> path;
};

struct Candidate {
  int32_t token;
  float logit;
};

// Order of preference everywhere: larger logit, then lower token id. Total, so that every selection is unique.
inline bool is_better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The tokens still in the running. Never empty, every logit finite or -inf, and at least one equal to max_logit.
struct Candidates {
  Candidate* data;
  int64_t size;
  float max_logit;
  bool sorted;  // by is_better; false: by token id
  bool noise;   // whether Gumbel noise will be added; false: the best logit wins

  // Puts the n best first, in order; the rest follow in no order that may be relied on. Leaves size as it is.
  void sort_best(int64_t n);
  // Drops all but the n best (n >= 1) and sorts them. One pass when n is small against size.
  void keep_best(int64_t n);
};

// Stages run in table order, first every adjust, then every filter.
class SamplerStage {
 public:
  virtual ~SamplerStage() = default;
  // logits: [n_vocab], by token id, -inf = banned. May change any of them, but not to NaN or +inf.
  virtual void adjust(float* /*logits*/, const TokenHistory& /*history*/) {}
  // True when adjust does something: without such stages the logits are not copied.
  virtual bool adjusts() const { return false; }
  // May drop candidates, but not the best, and may apply a monotone map to all logits.
  // For several threads at once.
  virtual void filter(Candidates& /*candidates*/) const {}
};

struct StageRow {
  const char* name;
  // nullptr when these options leave the stage nothing to do. Options are valid.
  std::unique_ptr<SamplerStage> (*make)(const SamplerOptions& options, int64_t n_vocab);
};

// The chain, in the order in which it runs.
std::span<const StageRow> sampler_stages();

}  // namespace expertree
