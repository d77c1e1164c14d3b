// Which cells of a device's pool of keys and values belong to which sequence, and what lies in them. What a sequence has
// there is a copy of what its SequenceState has, so that a sequence without cells, or a lost device, loses nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace expertree {

// Ranges of one row of cells. From any thread.
class CellPool {
 public:
  explicit CellPool(int64_t n_cells) : n_cells_(n_cells) {}

  int64_t n_cells() const { return n_cells_; }
  int64_t n_free() const;
  // The first cell of a free range of n; -1: there is none.
  int64_t take(int64_t n);
  void give_back(int64_t first);

 private:
  struct Range {
    int64_t first;
    int64_t n;
  };
  int64_t n_cells_;
  mutable std::mutex mutex_;
  std::vector<Range> taken_;  // by first cell
};

// A sequence's cells there: they have the numbers of its own, from base() on.
class DeviceCells {
 public:
  // nullptr: the pool has no room.
  static std::unique_ptr<DeviceCells> take(const std::shared_ptr<CellPool>& pool, int64_t n_cells, int64_t n_layers);
  ~DeviceCells() { pool_->give_back(base_); }
  DeviceCells(const DeviceCells&) = delete;
  DeviceCells& operator=(const DeviceCells&) = delete;

  int64_t base() const { return base_; }
  // Leading cells of a layer that are there as the sequence has them.
  int64_t n_valid(int64_t layer) const { return n_valid_[static_cast<size_t>(layer)]; }
  void set_valid(int64_t layer, int64_t n) { n_valid_[static_cast<size_t>(layer)] = n; }
  // The sequence has changed its own from this one on.
  void changed(int64_t layer, int64_t cell);
  void changed(int64_t cell);

 private:
  DeviceCells(std::shared_ptr<CellPool> pool, int64_t base, int64_t n_layers)
      : pool_(std::move(pool)), base_(base), n_valid_(static_cast<size_t>(n_layers), 0) {}

  std::shared_ptr<CellPool> pool_;
  int64_t base_;
  std::vector<int64_t> n_valid_;  // [n_layers]
};

}  // namespace expertree
