#include "cpp/spec/drafters/coupling_calibration.h"

#include <algorithm>
#include <cmath>

namespace expertree {
namespace {

constexpr double kRecallRate = 0.02;
constexpr double kSharpnessRate = 0.05;
constexpr double kLargestGradient = 2.0;
constexpr double kLeastSharpness = 0.05;
constexpr double kLargestSharpness = 20.0;

// exp(sharpness * (score - best score)), normalised.
std::vector<double> shares(std::span<const RankedToken> ranked, double sharpness) {
  std::vector<double> p;
  double total = 0.0;
  for (const RankedToken& token : ranked) {
    const double lead = static_cast<double>(token.score) - static_cast<double>(ranked[0].score);
    p.push_back(std::isfinite(lead) ? std::exp(sharpness * lead) : 0.0);
    total += p.back();
  }
  for (double& share : p) share /= total;
  return p;
}

}  // namespace

size_t CouplingCalibration::index(int32_t depth) {
  return std::min(static_cast<size_t>(std::max(depth, 1)) - 1, kDepths - 1);
}

std::vector<float> CouplingCalibration::chances(std::span<const RankedToken> ranked, int32_t depth) const {
  std::vector<float> chances;
  for (const double share : shares(ranked, at(depth).sharpness)) {
    chances.push_back(static_cast<float>(at(depth).recall * share));
  }
  return chances;
}

void CouplingCalibration::learn(std::span<const RankedToken> ranked, int32_t depth, int32_t token) {
  if (ranked.empty()) return;
  Depth& d = depths_[index(depth)];
  const auto chosen = std::ranges::find(ranked, token, &RankedToken::token);
  d.recall += kRecallRate * ((chosen != ranked.end() ? 1.0 : 0.0) - d.recall);
  if (chosen == ranked.end() || ranked.size() < 2) return;
  // d log likelihood / d sharpness = score of the chosen - mean score
  const std::vector<double> p = shares(ranked, d.sharpness);
  double gradient = static_cast<double>(chosen->score);
  for (size_t i = 0; i < ranked.size(); ++i) {
    if (p[i] > 0.0) gradient -= p[i] * static_cast<double>(ranked[i].score);
  }
  if (!std::isfinite(gradient)) return;
  d.sharpness += kSharpnessRate * std::clamp(gradient, -kLargestGradient, kLargestGradient);
  d.sharpness = std::clamp(d.sharpness, kLeastSharpness, kLargestSharpness);
}

}  // namespace expertree
