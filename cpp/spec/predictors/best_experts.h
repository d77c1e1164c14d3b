// The experts that a router would choose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace expertree {

// The n_used best of scores [n_experts], best first, ties to the lower id, into best; order is scratch.
inline void best_experts(const float* scores, int32_t n_experts, int32_t n_used, std::vector<int32_t>* order,
                         int32_t* best) {
  order->resize(static_cast<size_t>(n_experts));
  std::iota(order->begin(), order->end(), 0);
  std::partial_sort(order->begin(), order->begin() + n_used, order->end(), [scores](int32_t a, int32_t b) {
    return scores[a] > scores[b] || (!(scores[b] > scores[a]) && a < b);
  });
  std::copy_n(order->begin(), n_used, best);
}

}  // namespace expertree
