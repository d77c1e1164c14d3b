#include "cpp/spec/step_cost.h"

#include <algorithm>
#include <vector>

namespace expertree {

void StepCost::expert_prices(int32_t layer, std::span<const int32_t> experts, ExpertPrice* prices) const {
  for (size_t i = 0; i < experts.size(); ++i) {
    const double first = run_seconds(layer, experts[i], 1);
    prices[i] = {read_seconds(layer, experts[i]), first, run_seconds(layer, experts[i], 2) - first};
  }
}

double step_seconds(const StepCost& cost, const ExpertSets& sets, std::span<const int32_t> nodes) {
  const auto n_rows = static_cast<int64_t>(nodes.size()) + 1;
  if (sets.empty()) return cost.iteration_seconds(n_rows);
  double seconds = cost.base_seconds(n_rows);
  std::vector<int64_t> rows_of(static_cast<size_t>(sets.n_experts));
  for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
    std::fill(rows_of.begin(), rows_of.end(), 0);
    for (const int32_t expert : sets.of(0, layer)) ++rows_of[static_cast<size_t>(expert)];
    for (const int32_t node : nodes) {
      for (const int32_t expert : sets.of(node + 1, layer)) ++rows_of[static_cast<size_t>(expert)];
    }
    auto [read, run] = cost.other_seconds(layer);
    for (int32_t expert = 0; expert < sets.n_experts; ++expert) {
      const int64_t n = rows_of[static_cast<size_t>(expert)];
      if (n == 0) continue;
      read += cost.read_seconds(layer, expert);
      run += cost.run_seconds(layer, expert, n);
    }
    seconds += std::max(read, run);
  }
  return seconds;
}

}  // namespace expertree
