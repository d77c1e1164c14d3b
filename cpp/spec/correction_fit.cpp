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

// Minimises the loss over the free terms, the others being 0. False: that has no solution.
bool CorrectionFit::solve(const std::array<bool, kTerms>& free, Terms* value) const {
  std::array<std::array<double, kTerms + 1>, kTerms> m = {};
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) m[i][j] = free[i] && free[j] ? xx_[i][j] : 0.0;
    m[i][i] += free[i] ? trust_[i] : 1.0;
    m[i][kTerms] = free[i] ? xy_[i] + trust_[i] * prior_[i] : 0.0;
  }
  for (size_t k = 0; k < kTerms; ++k) {  // a positive matrix needs no pivoting
    if (!(m[k][k] > 0.0)) return false;
    for (size_t i = 0; i < kTerms; ++i) {
      if (i == k) continue;
      const double factor = m[i][k] / m[k][k];
      for (size_t j = k; j <= kTerms; ++j) m[i][j] -= factor * m[k][j];
    }
  }
  for (size_t i = 0; i < kTerms; ++i) (*value)[i] = m[i][kTerms] / m[i][i];
  return true;
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
  double least = HUGE_VAL;
  for (const auto& [wait, row] : {std::pair{true, true}, {true, false}, {false, true}, {false, false}}) {
    Terms found;
    if (!solve({true, wait, row}, &found)) continue;
    if (std::ranges::any_of(found, [](double v) { return v < 0.0; })) continue;
    const double here = loss(found);
    if (here < least) {
      least = here;
      value_ = found;
    }
  }
  value_[kScale] = std::clamp(value_[kScale], 1.0 / kMostScale, kMostScale);
}

}  // namespace expertree
