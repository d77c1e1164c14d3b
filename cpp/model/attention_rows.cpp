#include "cpp/model/attention_rows.h"

namespace expertree {

void AttentionRows::clear() {
  for (std::vector<int32_t>* of_rows : {&cells_, &base_, &n_prefix_, &tail_, &n_tail_, &tails_}) of_rows->clear();
}

bool AttentionRows::add(const SequenceState& state, int64_t begin, int64_t n, int64_t max_tails) {
  const int64_t base = state.device_cells()->base();
  for (int64_t r = begin; r < begin + n; ++r) {
    const PathCells& path = state.path(r);
    cells_.push_back(static_cast<int32_t>(base + state.cell(r)));
    base_.push_back(static_cast<int32_t>(base));
    n_prefix_.push_back(static_cast<int32_t>(path.n_prefix));
    tail_.push_back(static_cast<int32_t>(tails_.size()));
    n_tail_.push_back(static_cast<int32_t>(path.tail.size()));
    for (const int32_t cell : path.tail) tails_.push_back(static_cast<int32_t>(base + cell));
    if (std::ssize(tails_) > max_tails) return false;
  }
  return true;
}

DeviceAttentionRows AttentionRows::rows() const {
  DeviceAttentionRows rows;
  rows.cells = cells_.data();
  rows.base = base_.data();
  rows.n_prefix = n_prefix_.data();
  rows.tail = tail_.data();
  rows.n_tail = n_tail_.data();
  rows.tails = tails_;
  return rows;
}

}  // namespace expertree
