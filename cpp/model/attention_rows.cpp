#include "cpp/model/attention_rows.h"

#include <algorithm>
#include <numeric>

namespace expertree {

void AttentionRows::clear() {
  cells_.clear();
  n_tail_.clear();
  tails_.clear();
  runs_.clear();
}

bool AttentionRows::add(const SequenceState& state, int64_t begin, int64_t n, int64_t max_tails) {
  const int64_t base = state.device_cells()->base();
  for (int64_t r = begin; r < begin + n; ++r) cells_.push_back(static_cast<int32_t>(base + state.cell(r)));
  return add_runs(state, begin, n, max_tails);
}

// Rows whose paths are one run of cells share any prefix; others none that is longer than their own, and what rows have
// beyond it is listed. Rows with too long lists are divided.
bool AttentionRows::add_runs(const SequenceState& state, int64_t begin, int64_t n, int64_t max_tails) {
  int64_t longest = 0;
  int64_t n_prefix = -1;
  for (int64_t r = begin; r < begin + n; ++r) {
    const PathCells& path = state.path(r);
    longest = std::max(longest, path.n_prefix);
    if (!path.tail.empty() && (n_prefix < 0 || path.n_prefix < n_prefix)) n_prefix = path.n_prefix;
  }
  const bool is_chain = n_prefix < 0;
  if (is_chain) n_prefix = longest;
  int64_t stride = 0;
  for (int64_t r = begin; r < begin + n; ++r) {
    const PathCells& path = state.path(r);
    stride = std::max(stride, path.n_prefix + std::ssize(path.tail) - n_prefix);
  }
  const auto at = std::ssize(tails_);
  if (at + n * stride > max_tails) {
    return n > 1 && add_runs(state, begin, n / 2, max_tails) && add_runs(state, begin + n / 2, n - n / 2, max_tails);
  }
  runs_.push_back({std::ssize(n_tail_), n, state.device_cells()->base(), n_prefix, at, stride});
  tails_.resize(static_cast<size_t>(at + n * stride), 0);
  for (int64_t r = begin; r < begin + n; ++r) {
    const PathCells& path = state.path(r);
    int32_t* tail = tails_.data() + at + (r - begin) * stride;
    const int64_t n_run = std::max<int64_t>(0, path.n_prefix - n_prefix);
    if (!is_chain) {
      std::iota(tail, tail + n_run, static_cast<int32_t>(n_prefix));
      std::ranges::copy(path.tail, tail + n_run);
    }
    n_tail_.push_back(static_cast<int32_t>(path.n_prefix + std::ssize(path.tail) - n_prefix));
  }
  return true;
}

}  // namespace expertree
