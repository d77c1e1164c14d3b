// MoE-Spec's budget (arXiv 2602.16052): a pass over a tree uses no more than so many experts of each layer. It changes
// what the model says, so nothing asks for it unless it was asked for by name.
#include <algorithm>
#include <limits>
#include <numeric>

#include "cpp/model/forward.h"

namespace expertree {
namespace {

constexpr float kDropped = -std::numeric_limits<float>::infinity();

}  // namespace

// Keeps the experts with the most router probability, summed over the piece's rows (ties to the lower id); the others'
// scores become -inf, so that rows choose the next best of those kept.
void Forward::drop_light_experts(const Piece& piece) {
  const int64_t n_experts = h_.moe.n_experts;
  std::vector<double> mass(static_cast<size_t>(n_experts), 0.0);
  std::vector<float> p(static_cast<size_t>(n_experts));
  for (int64_t r = piece.at; r < piece.at + piece.n; ++r) {
    std::copy_n(scores_.data() + r * n_experts, n_experts, p.data());
    if (h_.moe.gating == Gating::kSoftmaxOfChosen) backend_.kernels().softmax(p.data(), n_experts, p.data());
    for (size_t e = 0; e < mass.size(); ++e) mass[e] += static_cast<double>(p[e]);
  }
  std::vector<int64_t> order(static_cast<size_t>(n_experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&mass](int64_t a, int64_t b) {
    return mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)];
  });
  for (size_t i = static_cast<size_t>(piece.request().most_experts); i < order.size(); ++i) {
    for (int64_t r = piece.at; r < piece.at + piece.n; ++r) {
      scores_[static_cast<size_t>(r * n_experts + order[i])] = kDropped;
    }
  }
}

}  // namespace expertree
