// What a verified step is expected to take, in seconds. The prices that selectors see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cpp/spec/expert_sets.h"

namespace expertree {

// Seconds of one expert. Running it for n rows takes run_first + (n - 1) * run_row.
struct ExpertPrice {
  double read;
  double run_first;
  double run_row;
};

// Seconds of a layer's experts; reading and running overlap.
struct LayerSeconds {
  double read = 0.0;
  double run = 0.0;
};

class StepCost {
 public:
  virtual ~StepCost() = default;

  // Of everything but experts (attention, routers, norms, head, launches) with n rows, the root's included.
  virtual double base_seconds(int64_t n_rows) const = 0;
  // Of one expert that n_rows rows use, where it is now: run from memory, or waited for, or read and run.
  // run: computing it, affine in n_rows; read: getting its bytes, 0 when it is in memory. Within a layer reading and
  // computing overlap.
  virtual double run_seconds(int32_t layer, int32_t expert, int64_t n_rows) const = 0;
  virtual double read_seconds(int32_t layer, int32_t expert) const = 0;
  // Both of many experts of a layer at once, in prices[0 .. experts.size()): for selectors, which ask for thousands.
  virtual void expert_prices(int32_t layer, std::span<const int32_t> experts, ExpertPrice* prices) const;
  // Mean measured seconds of a whole iteration with n rows (EVICT's C), drafting left out.
  virtual double iteration_seconds(int64_t n_rows) const = 0;
  // Of drafting a tree, on average; already spent when a selector runs, but part of every step's time.
  virtual double draft_seconds() const = 0;

  // Where other sequences share the pass: rows are those beside theirs, and an expert that they use costs its row alone.
  // What the pass brings them, in tokens, and what their experts take, which is spent whatever is chosen.
  virtual double other_tokens() const { return 0.0; }
  virtual LayerSeconds other_seconds(int32_t) const { return {}; }
  virtual bool others_use(int32_t, int32_t) const { return false; }
  // Of a plain iteration, this sequence's share where others have one, too; and of an expert in one, on average.
  virtual double plain_seconds() const { return iteration_seconds(1); }
  virtual double mean_expert_seconds(int32_t n_layers, int32_t n_used) const {
    return std::max(0.0, iteration_seconds(1) - base_seconds(1)) / (static_cast<double>(n_layers) * n_used);
  }
};

// Seconds of verifying the root and the chosen nodes (indices into the tree), beside what other sequences have in the
// pass: base, and per layer max(reads, runs) over the union of experts. Without sets: iteration_seconds.
double step_seconds(const StepCost& cost, const ExpertSets& sets, std::span<const int32_t> nodes);

}  // namespace expertree
