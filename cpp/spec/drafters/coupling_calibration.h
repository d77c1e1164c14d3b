// How surely a coupled draft is right.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpp/sample/sampler.h"

namespace expertree {

// The target's perturbed scores of the ranked tokens are the draft's plus errors that differ by token. With errors of
// a Gumbel kind the chance that token j is the target's choice is
//   recall * exp(sharpness * score_j) / sum over the ranked tokens of exp(sharpness * score_i),
// which is a logistic function of the lead when two are ranked. Per depth, `recall` is the share of steps whose true
// token was among the ranked, and `sharpness` is fitted to them by gradient ascent on the likelihood.
class CouplingCalibration {
 public:
  // Chances of the ranked tokens (best first) at a depth, from 1 on.
  std::vector<float> chances(std::span<const RankedToken> ranked, int32_t depth) const;
  // The target chose `token` where these were ranked.
  void learn(std::span<const RankedToken> ranked, int32_t depth, int32_t token);

 private:
  struct Depth {
    double sharpness = 2.0;
    double recall = 0.8;
  };
  static constexpr size_t kDepths = 16;  // deeper ones share the last
  const Depth& at(int32_t depth) const { return depths_[index(depth)]; }
  static size_t index(int32_t depth);

  std::array<Depth, kDepths> depths_;
};

}  // namespace expertree
