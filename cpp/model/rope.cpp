#include "cpp/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace expertree {
namespace {

// The pair that turns `turns` times over the original context.
double pair_of_turns(const YarnParameters& yarn, int64_t n_rot, double base, double turns) {
  return static_cast<double>(n_rot) * std::log(yarn.n_ctx_original / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(base));
}

// YaRN's share of the unscaled frequency in each pair: 1 for fast pairs, 0 for slow ones.
std::vector<double> unscaled_shares(const YarnParameters& yarn, int64_t n_rot, double base) {
  const double low = std::max(0.0, std::floor(pair_of_turns(yarn, n_rot, base, yarn.beta_fast)));
  const double high =
      std::min(static_cast<double>(n_rot - 1), std::ceil(pair_of_turns(yarn, n_rot, base, yarn.beta_slow)));
  std::vector<double> shares;
  for (int64_t i = 0; i < n_rot / 2; ++i) {
    const double ramp = (static_cast<double>(i) - low) / std::max(0.001, high - low);
    shares.push_back(1.0 - std::clamp(ramp, 0.0, 1.0));
  }
  return shares;
}

// Whether text turns this pair: its position stands in sections 0 to 2, which take pairs in turn, and 0 in the rest.
bool turns(const std::array<int64_t, 4>& sections, int64_t pair) {
  const int64_t n = sections[0] + sections[1] + sections[2] + sections[3];
  if (n == 0) return true;
  const int64_t place = pair % n;
  return place < 3 * sections[static_cast<size_t>(place % 3)];
}

}  // namespace

Rope::Rope(const HyperParameters& h, std::span<const float> factors, bool windowed)
    : style_(h.rope_style), magnitude_(h.rope_magnitude) {
  const int64_t n_rot = windowed ? h.n_rot_windowed : h.n_rot;
  const double base = windowed ? h.rope_base_windowed : h.rope_base;
  const double scale = windowed ? h.rope_frequency_scale_windowed : h.rope_frequency_scale;
  if (windowed && !h.rope_factors_windowed) factors = {};
  std::vector<double> shares(static_cast<size_t>(n_rot / 2), 0.0);
  if (h.yarn.on) {
    shares = unscaled_shares(h.yarn, n_rot, base);
    // The magnitude was made for the model's scale; a layer that scales otherwise has its own.
    magnitude_ *= (1.0 - 0.1 * std::log(scale)) / (1.0 - 0.1 * std::log(h.rope_frequency_scale));
  }
  for (int64_t i = 0; i < n_rot / 2; ++i) {
    const auto pair = static_cast<size_t>(i);
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(n_rot);
    const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[pair]);
    const double unscaled = std::pow(base, exponent) / factor;
    const double frequency = unscaled * (scale * (1.0 - shares[pair]) + shares[pair]);
    frequencies_.push_back(turns(h.rope_sections, i) ? frequency : 0.0);
  }
}

void Rope::angles(int64_t position, float* cos, float* sin) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cos[i] = static_cast<float>(std::cos(angle) * magnitude_);
    sin[i] = static_cast<float>(std::sin(angle) * magnitude_);
  }
}

void Rope::apply(const float* cos, const float* sin, float* head) const {
  const int64_t n = n_pairs();
  const int64_t first = style_ == RopeStyle::kConsecutive ? 2 : 1;   // stride from pair to pair
  const int64_t second = style_ == RopeStyle::kConsecutive ? 1 : n;  // from a pair's first element to its second
  for (int64_t i = 0; i < n; ++i) {
    float* x = head + i * first;
    const float x0 = x[0];
    const float x1 = x[second];
    x[0] = x0 * cos[i] - x1 * sin[i];
    x[second] = x1 * cos[i] + x0 * sin[i];
  }
}

}  // namespace expertree
