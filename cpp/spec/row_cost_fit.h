// Seconds by number of rows, learned from steps.
#pragma once

#include <cstdint>
#include <vector>

namespace expertree {

// A straight line by least squares through the means of all row counts seen, and where a count was seen often its own
// mean, because kernels go by steps. A mean forgets only when its count comes again: a long time of plain decoding
// leaves what is known about trees alone. Not thread-safe.
class RowCostFit {
 public:
  // n_rows from 1; more than kMaxRows count as kMaxRows.
  void add(int64_t n_rows, double seconds);
  double seconds(int64_t n_rows) const;
  bool empty() const { return cells_.empty(); }
  // The counts seen, rising.
  std::vector<int64_t> seen() const;

 private:
  struct Cell {
    double weight = 0.0;
    double mean = 0.0;
  };
  static constexpr int64_t kMaxRows = 1024;
  static constexpr double kKeep = 0.98;       // some 50 steps with that many rows
  static constexpr double kLineWeight = 4.0;  // steps that the line counts for

  void fit_line();

  std::vector<Cell> cells_;  // [largest n_rows seen + 1]
  double at_zero_ = 0.0;
  double per_row_ = 0.0;
};

}  // namespace expertree
