// For tests and benchmarks: drafts of a known quality, without a trained drafter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpp/spec/drafter.h"

namespace expertree {

struct ScriptedOptions {
  // The whole sequence as a plain run of the same request gave it, the prompt included. Past its end there are no drafts.
  std::vector<int32_t> truth;
  // rates[d]: the chance that the true token is among a true node's children at depth d + 1, when all above it were
  // there; the last one counts for all depths below. 0 is a drafter that is always wrong.
  std::vector<double> rates = {0.7};
  // The child of rank j is the true one with chance proportional to spread^j; 0: there is one child, so the tree is a
  // chain. More than 0: a true token of low rank may be lost when the tree is cut to its best nodes.
  double spread = 0.3;
  // Standard deviation of what is added to the logarithm of each node's probability.
  double score_noise = 0.0;
  // Charged for each depth that is drafted, by waiting: what a head's pass takes.
  double seconds_per_depth = 0.0;
  uint64_t seed = 0;
};

// Without noise a node's score is exactly the chance that it is accepted. Every draw is a function of (seed, position of
// the root, tokens of the path). Throws kInvalidRequest for an option out of range.
std::unique_ptr<Drafter> make_scripted_drafter(const ScriptedOptions& options);

}  // namespace expertree
