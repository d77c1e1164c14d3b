// Rotary position embedding. Angles are computed in double precision and rounded once, so their bits do not depend on
// the instruction set; the rotation is x0 * c - x1 * s, x1 * c + x0 * s, each product and sum rounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/model/hyperparameters.h"

namespace expertree {

class Rope {
 public:
  // factors: float [n_rot / 2] or more, divides each pair's frequency; empty: none. windowed: as windowed layers turn.
  Rope(const HyperParameters& h, std::span<const float> factors, bool windowed = false);

  int64_t n_pairs() const { return static_cast<int64_t>(frequencies_.size()); }
  // cos and sin of one position, times the magnitude: float [n_pairs] each.
  void angles(int64_t position, float* cos, float* sin) const;
  // Turns the first 2 * n_pairs elements of one head in place.
  void apply(const float* cos, const float* sin, float* head) const;

 private:
  RopeStyle style_;
  double magnitude_;
  std::vector<double> frequencies_;  // radians per position
};

}  // namespace expertree
