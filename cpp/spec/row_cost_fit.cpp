#include "cpp/spec/row_cost_fit.h"

#include <algorithm>

namespace expertree {

void RowCostFit::add(int64_t n_rows, double seconds) {
  const auto n = static_cast<size_t>(std::clamp<int64_t>(n_rows, 1, kMaxRows));
  if (cells_.size() <= n) cells_.resize(n + 1);
  Cell& cell = cells_[n];
  cell.weight = kKeep * cell.weight + 1.0;
  cell.mean += (seconds - cell.mean) / cell.weight;
  fit_line();
}

void RowCostFit::fit_line() {
  double weight = 0.0;
  double rows = 0.0;
  double seconds = 0.0;
  for (size_t n = 1; n < cells_.size(); ++n) {
    weight += cells_[n].weight;
    rows += cells_[n].weight * static_cast<double>(n);
    seconds += cells_[n].weight * cells_[n].mean;
  }
  const double mean_rows = rows / weight;
  const double mean_seconds = seconds / weight;
  double square = 0.0;
  double product = 0.0;
  for (size_t n = 1; n < cells_.size(); ++n) {
    const double from_mean = static_cast<double>(n) - mean_rows;
    square += cells_[n].weight * from_mean * from_mean;
    product += cells_[n].weight * from_mean * (cells_[n].mean - mean_seconds);
  }
  // More rows never take less.
  per_row_ = square > 0.0 ? std::max(0.0, product / square) : 0.0;
  at_zero_ = mean_seconds - per_row_ * mean_rows;
}

double RowCostFit::seconds(int64_t n_rows) const {
  const double line = std::max(0.0, at_zero_ + per_row_ * static_cast<double>(n_rows));
  const auto n = static_cast<size_t>(std::max<int64_t>(n_rows, 0));
  if (n >= cells_.size()) return line;
  const Cell& cell = cells_[n];
  return (kLineWeight * line + cell.weight * cell.mean) / (kLineWeight + cell.weight);
}

std::vector<int64_t> RowCostFit::seen() const {
  std::vector<int64_t> counts;
  for (size_t n = 1; n < cells_.size(); ++n) {
    if (cells_[n].weight > 0.0) counts.push_back(static_cast<int64_t>(n));
  }
  return counts;
}

}  // namespace expertree
