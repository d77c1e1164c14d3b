#include "cpp/model/cell_pool.h"

#include <algorithm>

namespace expertree {

int64_t CellPool::n_free() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t n = n_cells_;
  for (const Range& range : taken_) n -= range.n;
  return n;
}

int64_t CellPool::take(int64_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t first = 0;
  auto at = taken_.begin();
  while (at != taken_.end() && at->first - first < n) {
    first = at->first + at->n;
    ++at;
  }
  if (at == taken_.end() && n_cells_ - first < n) return -1;
  taken_.insert(at, {first, n});
  return first;
}

void CellPool::give_back(int64_t first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(taken_, [first](const Range& range) { return range.first == first; });
}

std::unique_ptr<DeviceCells> DeviceCells::take(const std::shared_ptr<CellPool>& pool, int64_t n_cells,
                                               int64_t n_layers) {
  const int64_t base = pool->take(n_cells);
  if (base < 0) return nullptr;
  return std::unique_ptr<DeviceCells>(new DeviceCells(pool, base, n_layers));
}

void DeviceCells::changed(int64_t layer, int64_t cell) {
  int64_t& n = n_valid_[static_cast<size_t>(layer)];
  n = std::min(n, cell);
}

void DeviceCells::changed(int64_t cell) {
  for (int64_t& n : n_valid_) n = std::min(n, cell);
}

}  // namespace expertree
