// Which experts the rows of a pass used, and which of them were not in memory when it began.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/model/model.h"

namespace expertree {

class PassExperts {
 public:
  // Looks at where experts are now: some microseconds, unless nobody will ask (`counts` false).
  PassExperts(const Model& model, bool counts);

  // Experts [n_layers][n_rows][n_used] of one sequence's rows, after the pass. Returns how many of all layers they are,
  // each once.
  int64_t add(std::span<const int32_t> ids, int64_t n_rows);
  int64_t n_experts() const { return n_experts_; }
  // Of all sequences, those that were missing.
  double misses() const { return n_missing_; }
  // Of some rows of one of these sequences; an expert that k sequences use counts 1/k.
  double misses(std::span<const int32_t> ids, int64_t n_rows, std::span<const int32_t> rows);

 private:
  template <typename Visit>
  void each(std::span<const int32_t> ids, int64_t n_rows, std::span<const int32_t> rows, const Visit& visit);

  int64_t n_layers_;
  int64_t per_layer_;             // experts
  int64_t n_used_;
  std::vector<uint8_t> missing_;  // [n_layers][per_layer]; empty: none
  std::vector<uint8_t> users_;    // sequences that use an expert
  std::vector<uint8_t> seen_;     // scratch of each()
  int64_t n_experts_ = 0;
  double n_missing_ = 0.0;
};

}  // namespace expertree
