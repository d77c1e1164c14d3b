#include "cpp/model/rope.h"

#include <cmath>

namespace expertree {
namespace {

// Whether text turns this pair: its position stands in sections 0 to 2, which take pairs in turn, and 0 in the rest.
bool turns(const std::array<int64_t, 4>& sections, int64_t pair) {
  const int64_t n = sections[0] + sections[1] + sections[2] + sections[3];
  if (n == 0) return true;
  const int64_t place = pair % n;
  return place < 3 * sections[static_cast<size_t>(place % 3)];
}

}  // namespace

Rope::Rope(const HyperParameters& h, std::span<const float> factors) : style_(h.rope_style) {
  for (int64_t i = 0; i < h.n_rot / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(h.n_rot);
    const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[static_cast<size_t>(i)]);
    const double frequency = std::pow(h.rope_base, exponent) * h.rope_frequency_scale / factor;
    frequencies_.push_back(turns(h.rope_sections, i) ? frequency : 0.0);
  }
}

void Rope::angles(int64_t position, float* cos, float* sin) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
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
