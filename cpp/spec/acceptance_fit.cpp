#include "cpp/spec/acceptance_fit.h"

#include <algorithm>
#include <cmath>

namespace expertree {
namespace {

constexpr double kLeastSlope = 0.05;
constexpr double kMostSlope = 10.0;
constexpr double kMostOffset = 10.0;

double log_odds(float score) {
  const double s = std::clamp(static_cast<double>(score), 1e-4, 1.0 - 1e-4);
  return std::log(s / (1.0 - s));
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

double AcceptanceFit::probability(float score) const { return sigmoid(slope_ * log_odds(score) + offset_); }

float AcceptanceFit::score(double probability) const {
  const double p = std::clamp(probability, 1e-4, 1.0 - 1e-4);
  return static_cast<float>(sigmoid((std::log(p / (1.0 - p)) - offset_) / slope_));
}

void AcceptanceFit::restore(double slope, double offset) {
  slope_ = std::clamp(slope, kLeastSlope, kMostSlope);
  offset_ = std::clamp(offset, -kMostOffset, kMostOffset);
}

void AcceptanceFit::observe(float score, bool accepted) {
  const double x = log_odds(score);
  const double p = sigmoid(slope_ * x + offset_);
  const double error = (accepted ? 1.0 : 0.0) - p;
  const double weight = p * (1.0 - p);
  ss_ = kKeep * ss_ + weight * x * x;
  so_ = kKeep * so_ + weight * x;
  oo_ = kKeep * oo_ + weight;
  const double a = ss_ + kRidge;
  const double b = oo_ + kRidge;
  const double determinant = a * b - so_ * so_;
  // The map must rise with the score.
  slope_ = std::clamp(slope_ + (b * x - so_) * error / determinant, kLeastSlope, kMostSlope);
  offset_ = std::clamp(offset_ + (a - so_ * x) * error / determinant, -kMostOffset, kMostOffset);
}

}  // namespace expertree
