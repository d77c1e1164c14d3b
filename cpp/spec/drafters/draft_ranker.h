// From a drafter's logits to continuations with scores; what model-like drafters share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpp/backend/cpu_backend.h"
#include "cpp/sample/sampler.h"
#include "cpp/spec/drafters/coupling_calibration.h"
#include "cpp/spec/drafters/tree_growth.h"

namespace expertree {

// A session's bias and penalties are applied to the draft logits, spread to the target's ids. At temperature 0 a
// continuation's probability is then the drafter's own, its softmax. Above, drafts are coupled with the
// target (METHODS: Daliri, Musco and Suresh 2024): the session's sampler ranks the draft logits with the noise and the
// filters that it will use on the target's logits at that position. The perturbed scores then tell which token wins,
// and CouplingCalibration how surely.
class DraftRanker {
 public:
  // source: names the drafter's file in errors. target_ids: the target's id of each column of the logits; empty:
  // columns are target ids, and those beyond n_vocab are left out.
  DraftRanker(std::string source, std::vector<int32_t> target_ids, int64_t n_draft, int64_t n_vocab);

  // Begins a draft that continues `history`, and learns from what became of the last one.
  void begin(std::span<const int32_t> history);

  // logits: [rows][n_draft], destroyed; one row per frontier node, or a single row that holds for all of them. The
  // frontier's nodes are of one depth. Throws kModelFormat when a logit is not finite.
  std::vector<std::vector<Continuation>> rank(float* logits, int64_t n_rows, std::span<const int32_t> frontier,
                                              const TokenTree& pool, int32_t top_k, Sampler& sampler,
                                              CpuBackend& backend);

  int64_t n_draft() const { return n_draft_; }
  int32_t target_id(int64_t column) const {
    return target_ids_.empty() ? static_cast<int32_t>(column) : target_ids_[static_cast<size_t>(column)];
  }
  uint64_t memory_bytes() const {
    return (target_ids_.size() + columns_.size()) * sizeof(int32_t) +
           (spread_.size() + adjusted_.size()) * sizeof(float) + likely_.size() * columns_.size() * sizeof(Candidate);
  }

 private:
  // What the sampler ranked below one node, kept until the truth is known.
  struct Ranked {
    int32_t node;  // of the pool; -1: the root
    std::vector<RankedToken> tokens;
  };

  void check_finite(const float* logits, int64_t n_rows) const;
  void adjust(const float* logits, int32_t node, const TokenTree& pool, Sampler& sampler, float* adjusted);
  std::vector<Continuation> most_probable(float* logits, int32_t top_k, const KernelTable& kernels) const;
  void rank_coupled(const float* logits, int64_t position, const Sampler& sampler, std::vector<Candidate>* likely,
                    std::vector<RankedToken>* ranked) const;
  std::vector<std::vector<Continuation>> coupled(const float* logits, int64_t stride, std::span<const int32_t> frontier,
                                                 const TokenTree& pool, int32_t top_k, const Sampler& sampler,
                                                 CpuBackend& backend);
  int64_t n_columns() const { return std::ssize(columns_); }
  void learn(std::span<const int32_t> history);

  std::string source_;
  std::vector<int32_t> target_ids_;
  std::vector<int32_t> columns_;  // those with a target id, by rising id
  int64_t n_draft_;
  int64_t n_vocab_;
  std::vector<float> spread_;  // [n_vocab] -inf but where a draft token is
  std::vector<float> adjusted_;  // [nodes][n_draft], where the sampler adjusts logits
  std::vector<int32_t> history_;  // committed tokens of this draft, the root the last
  std::vector<std::vector<Candidate>> likely_;  // [threads][columns] scratch
  std::vector<Ranked> ranked_;
  TokenTree pool_;  // of the last draft, as far as ranked_ needs it
  CouplingCalibration calibration_;
};

}  // namespace expertree
