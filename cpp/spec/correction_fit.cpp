#include "cpp/spec/correction_fit.h"

#include <algorithm>

namespace expertree {
namespace {

constexpr double kKeepPass = 0.98;
constexpr double kTrustedPasses = 4.0;  // that the scale believed before counts for
constexpr double kTrustedWaits = 1.0;   // the same of the wait, about which passes of like sizes say little
constexpr double kMostScale = 8.0;      // and its inverse: beyond it something else is wrong

}  // namespace

void CorrectionFit::restore(double scale, double wait_seconds) {
  *this = {};
  scale_ = prior_scale_ = std::clamp(scale, 1.0 / kMostScale, kMostScale);
  wait_ = prior_wait_ = std::max(0.0, wait_seconds);
}

void CorrectionFit::add(double predicted, double seconds) {
  if (prior_square_ == 0.0) prior_square_ = kTrustedPasses * predicted * predicted;
  const double more = seconds - prior_wait_ - prior_scale_ * predicted;
  prior_square_ *= kKeepPass;
  n_ = kKeepPass * n_ + 1.0;
  x_ = kKeepPass * x_ + predicted;
  xx_ = kKeepPass * xx_ + predicted * predicted;
  y_ = kKeepPass * y_ + more;
  xy_ = kKeepPass * xy_ + predicted * more;
  const double a = xx_ + prior_square_;
  const double b = n_ + kTrustedWaits;
  const double determinant = a * b - x_ * x_;
  wait_ = prior_wait_ + (determinant > 0.0 ? (a * y_ - x_ * xy_) / determinant : 0.0);
  // Never less than nothing, nor more than all that passes took.
  wait_ = std::clamp(wait_, 0.0, std::max(0.0, prior_wait_ + (y_ + prior_scale_ * x_) / n_));
  scale_ = std::clamp(prior_scale_ + (xy_ - (wait_ - prior_wait_) * x_) / a, 1.0 / kMostScale, kMostScale);
}

}  // namespace expertree
