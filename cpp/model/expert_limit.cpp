// MoE-Spec's budget (arXiv 2602.16052): a pass over a tree uses no more than so many experts of each layer. It changes
// what the model says, so nothing asks for it unless it was asked for by name.
#include <algorithm>
#include <numeric>

#include "cpp/model/forward.h"

namespace expertree {

// Keeps the experts with the most router probability, summed over the chunk's rows (ties to the lower id); the others'
// scores become -1, below every probability, so that rows choose the next best of those kept.
void Forward::drop_light_experts(const Chunk& chunk) {
  const int64_t n_experts = h_.moe.n_experts;
  std::vector<double> mass(static_cast<size_t>(n_experts), 0.0);
  for (int64_t r = 0; r < chunk.n; ++r) {
    for (int64_t e = 0; e < n_experts; ++e) {
      mass[static_cast<size_t>(e)] += static_cast<double>(scores_[static_cast<size_t>(r * n_experts + e)]);
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(n_experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&mass](int64_t a, int64_t b) {
    return mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)];
  });
  for (size_t i = static_cast<size_t>(chunk.most_experts); i < order.size(); ++i) {
    for (int64_t r = 0; r < chunk.n; ++r) scores_[static_cast<size_t>(r * n_experts + order[i])] = -1.0f;
  }
}

}  // namespace expertree
