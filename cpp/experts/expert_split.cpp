#include "cpp/experts/expert_split.h"

#include <algorithm>
#include <numeric>

namespace expertree {

double split_seconds(const ExpertCosts& costs, const SplitLayer& layer, std::span<const int64_t> copied,
                     std::span<const int64_t> kept) {
  const auto n_copied = static_cast<double>(copied.size());
  double cpu = n_copied * layer.stage_seconds;
  for (const int64_t n : kept) cpu += costs.run_seconds(n);
  double device = static_cast<double>(layer.n_device_experts) * costs.device_base_seconds +
                  static_cast<double>(layer.n_device_rows) * costs.device_row_seconds;
  double last = 0.0;  // runs behind its own copy, whatever else goes on
  for (const int64_t n : copied) {
    device += costs.device_seconds(n);
    last = std::max(last, costs.device_seconds(n));
  }
  return std::max({cpu, device, n_copied * layer.copy_seconds + last});
}

std::vector<int32_t> split_experts(const ExpertCosts& costs, const SplitLayer& layer, std::span<const int64_t> n_rows) {
  std::vector<int32_t> order(n_rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return n_rows[static_cast<size_t>(a)] > n_rows[static_cast<size_t>(b)];
  });
  std::vector<int64_t> rows;
  for (const int32_t i : order) rows.push_back(n_rows[static_cast<size_t>(i)]);
  const std::span all(rows);
  const auto most = static_cast<size_t>(std::clamp<int64_t>(layer.most, 0, std::ssize(rows)));
  size_t best = 0;
  double best_seconds = split_seconds(costs, layer, {}, all);
  for (size_t n = 1; n <= most; ++n) {
    const double seconds = split_seconds(costs, layer, all.first(n), all.subspan(n));
    if (seconds >= best_seconds) continue;
    best = n;
    best_seconds = seconds;
  }
  order.resize(best);
  return order;
}

}  // namespace expertree
