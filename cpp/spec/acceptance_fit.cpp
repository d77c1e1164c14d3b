#include "cpp/spec/acceptance_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace expertree {
namespace {

constexpr double kLeastSlope = 0.05;
constexpr double kMostSlope = 10.0;
constexpr double kMostOffset = 10.0;
constexpr double kMostDeviation = 4.0;
constexpr double kForget = 1.0 / 128.0;  // in a step without verification
constexpr double kPriorCurvature = 8.0;  // of a deviation: some 32 nodes

double log_odds(double score) {
  const double s = std::clamp(score, 1e-4, 1.0 - 1e-4);
  return std::log(s / (1.0 - s));
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

size_t AcceptanceFit::index(int32_t depth) { return static_cast<size_t>(std::clamp(depth, 1, kDepths) - 1); }

double AcceptanceFit::probability(float score, int32_t depth) const {
  return sigmoid(slope_ * log_odds(static_cast<double>(score)) + offset_ + deviation(depth));
}

float AcceptanceFit::least_score(double probability) const {
  double most = depths_[0].deviation;
  for (const Depth& depth : depths_) most = std::max(most, depth.deviation);
  return static_cast<float>(sigmoid((log_odds(probability) - offset_ - most) / slope_));
}

std::vector<double> AcceptanceFit::state() const {
  std::vector<double> state = {slope_, offset_};
  for (const Depth& depth : depths_) state.push_back(depth.deviation);
  return state;
}

void AcceptanceFit::restore(std::span<const double> state) {
  slope_ = std::clamp(state[0], kLeastSlope, kMostSlope);
  offset_ = std::clamp(state[1], -kMostOffset, kMostOffset);
  for (size_t d = 0; d < depths_.size(); ++d) {
    depths_[d].deviation = std::clamp(state[2 + d], -kMostDeviation, kMostDeviation);
  }
}

void AcceptanceFit::observe(float score, int32_t depth, bool accepted) {
  const double x = log_odds(static_cast<double>(score));
  const double p = probability(score, depth);
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
  Depth& own = depths_[index(depth)];
  own.evidence = kKeep * own.evidence + weight;
  own.deviation = std::clamp(own.deviation + error / (own.evidence + kPriorCurvature), -kMostDeviation, kMostDeviation);
  center();
}

void AcceptanceFit::forget() {
  const auto fade = [](double* value, double start) { *value += kForget * (start - *value); };
  fade(&slope_, 1.0);
  fade(&offset_, 0.0);
  fade(&ss_, kPriorNodes);
  fade(&so_, 0.0);
  fade(&oo_, kPriorNodes * 0.25);
  for (Depth& depth : depths_) {
    fade(&depth.deviation, 0.0);
    fade(&depth.evidence, 0.0);
  }
}

void AcceptanceFit::center() {
  double evidence = 0.0;
  double mean = 0.0;
  for (const Depth& depth : depths_) {
    evidence += depth.evidence;
    mean += depth.evidence * depth.deviation;
  }
  if (evidence <= 0.0) return;
  mean /= evidence;
  const double before = std::exchange(offset_, std::clamp(offset_ + mean, -kMostOffset, kMostOffset));
  for (Depth& depth : depths_) {  // those of an earlier session have no evidence in this one
    if (depth.evidence > 0.0 || depth.deviation != 0.0) depth.deviation -= offset_ - before;
  }
}

}  // namespace expertree
