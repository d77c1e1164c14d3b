#include "cpp/spec/correction_fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace expertree {
namespace {

constexpr double kKeepPass = 0.98;
constexpr double kTrustedPasses = 4.0;  // that the scale believed before counts for
constexpr double kTrustedWaits = 1.0;   // the same of the wait, about which passes of like sizes say little
constexpr double kTrustedRows = 2.0;    // and of a row's seconds, in passes of two rows
constexpr double kMostScale = 8.0;      // and its inverse: beyond it something else is wrong

}  // namespace

void CorrectionFit::restore(double scale, double wait_seconds, double row_seconds) {
  *this = {};
  value_ = prior_ = {std::clamp(scale, 1.0 / kMostScale, kMostScale), std::max(0.0, wait_seconds),
                     std::max(0.0, row_seconds)};
}

// Minimises the loss over the terms that are free; the others stay as they are in `value`.
void CorrectionFit::solve(const std::array<bool, kTerms>& free, Terms* value) const {
  std::array<std::array<double, kTerms + 1>, kTerms> m = {};
  for (size_t i = 0; i < kTerms; ++i) {
    m[i][i] = 1.0;
    m[i][kTerms] = (*value)[i];
    if (!free[i]) continue;
    m[i][i] = xx_[i][i] + trust_[i];
    m[i][kTerms] = xy_[i] + trust_[i] * prior_[i];
    for (size_t j = 0; j < kTerms; ++j) {
      if (j == i) continue;
      if (free[j]) {
        m[i][j] = xx_[i][j];
      } else {
        m[i][kTerms] -= xx_[i][j] * (*value)[j];
      }
    }
  }
  for (size_t k = 0; k < kTerms; ++k) {  // a positive matrix needs no pivoting
    for (size_t i = 0; i < kTerms; ++i) {
      if (i == k) continue;
      const double factor = m[i][k] / m[k][k];
      for (size_t j = k; j <= kTerms; ++j) m[i][j] -= factor * m[k][j];
    }
  }
  for (size_t i = 0; i < kTerms; ++i) (*value)[i] = m[i][kTerms] / m[i][i];
}

// But for what does not depend on the values.
double CorrectionFit::loss(const Terms& value) const {
  double sum = 0.0;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) sum += value[i] * xx_[i][j] * value[j];
    sum += trust_[i] * (value[i] - prior_[i]) * (value[i] - prior_[i]) - 2.0 * value[i] * xy_[i];
  }
  return sum;
}

void CorrectionFit::add(double predicted, double n_more, double seconds) {
  const Terms x = {predicted, 1.0, n_more};
  if (trust_[kWait] == 0.0) trust_ = {kTrustedPasses * predicted * predicted, kTrustedWaits, kTrustedRows};
  trust_[kScale] *= kKeepPass;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) xx_[i][j] = kKeepPass * xx_[i][j] + x[i] * x[j];
    xy_[i] = kKeepPass * xy_[i] + x[i] * seconds;
  }
  // The least loss within the bounds: each term is free, or at one of its bounds.
  double least = HUGE_VAL;
  for (const double scale : {0.0, 1.0 / kMostScale, kMostScale}) {
    for (const auto& [wait, row] : {std::pair{true, true}, {true, false}, {false, true}, {false, false}}) {
      Terms found = {scale, 0.0, 0.0};
      solve({scale == 0.0, wait, row}, &found);
      if (found[kScale] < 1.0 / kMostScale || found[kScale] > kMostScale) continue;
      if (found[kWait] < 0.0 || found[kRow] < 0.0) continue;
      const double here = loss(found);
      if (here < least) {
        least = here;
        value_ = found;
      }
    }
  }
}

}  // namespace expertree
