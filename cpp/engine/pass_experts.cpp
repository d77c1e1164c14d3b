#include "cpp/engine/pass_experts.h"

#include <algorithm>
#include <numeric>

namespace expertree {

PassExperts::PassExperts(const Model& model, bool counts)
    : n_layers_(model.n_moe_layers()),
      per_layer_(model.hyperparameters().moe.n_experts),
      n_used_(model.hyperparameters().moe.n_used) {
  const ExpertPager* pager = model.experts();
  if (pager == nullptr || !counts) return;
  const auto n = static_cast<size_t>(n_layers_ * per_layer_);
  users_.assign(n, 0);
  missing_.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    const auto layer = static_cast<int32_t>(static_cast<int64_t>(i) / per_layer_);
    const auto expert = static_cast<int32_t>(static_cast<int64_t>(i) % per_layer_);
    const ExpertState state = pager->state(layer, expert);
    missing_[i] = state == ExpertState::kMissing || state == ExpertState::kInFlight;
  }
}

// visit(index) for every expert of these rows, each once.
template <typename Visit>
void PassExperts::each(std::span<const int32_t> ids, int64_t n_rows, std::span<const int32_t> rows,
                       const Visit& visit) {
  for (int64_t layer = 0; layer < n_layers_; ++layer) {
    seen_.assign(static_cast<size_t>(per_layer_), 0);
    for (const int32_t row : rows) {
      const auto first = static_cast<size_t>((layer * n_rows + row) * n_used_);
      for (const int32_t expert : ids.subspan(first, static_cast<size_t>(n_used_))) {
        if (std::exchange(seen_[static_cast<size_t>(expert)], uint8_t{1}) != 0) continue;
        visit(static_cast<size_t>(layer * per_layer_ + expert));
      }
    }
  }
}

int64_t PassExperts::add(std::span<const int32_t> ids, int64_t n_rows) {
  if (ids.empty() || users_.empty()) return 0;
  std::vector<int32_t> rows(static_cast<size_t>(n_rows));
  std::iota(rows.begin(), rows.end(), 0);
  int64_t n = 0;
  each(ids, n_rows, rows, [&](size_t i) {
    ++n;
    if (users_[i]++ > 0) return;
    ++n_experts_;
    n_missing_ += missing_[i];
  });
  return n;
}

double PassExperts::misses(std::span<const int32_t> ids, int64_t n_rows, std::span<const int32_t> rows) {
  double n = 0.0;
  if (ids.empty() || n_missing_ == 0.0) return n;
  each(ids, n_rows, rows, [&](size_t i) {
    if (missing_[i]) n += 1.0 / users_[i];
  });
  return n;
}

}  // namespace expertree
