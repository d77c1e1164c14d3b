// What a sequence leaves behind in the model: the KV cache of layers with attention, the state of recurrent layers. Four
// verbs: begin a batch of rows, commit a path of them, roll all of them back, truncate to a length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/base/memory.h"
#include "cpp/model/cache_types.h"
#include "cpp/model/cell_pool.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/recurrent_state.h"
#include "cpp/model/token_batch.h"

namespace expertree {

// The cells that hold a row's path, position order: 0 .. n_prefix-1 in cells of the same number, then `tail`.
struct PathCells {
  int64_t n_prefix = 0;
  std::vector<int32_t> tail;
};

class SequenceState {
 public:
  // Room for n_ctx positions, and kTreeCells rows of a tree beyond them.
  SequenceState(const HyperParameters& h, int64_t n_ctx, CacheTypes types);

  static constexpr int64_t kTreeCells = 512;
  static uint64_t bytes_needed(const HyperParameters& h, int64_t n_ctx, CacheTypes types);

  int64_t n_ctx() const { return n_ctx_; }
  int64_t n_cells() const { return n_cells_; }
  int64_t n_committed() const { return n_committed_; }
  int64_t n_pending() const { return static_cast<int64_t>(paths_.size()); }

  // Takes cells for the rows. Throws kInvalidRequest when a position reaches n_ctx or the rows outnumber the cells;
  // nothing has changed then. There must be no pending rows. Keep::kAll, which needs a chain, promises that commit() will
  // be given all rows or none: recurrent layers then keep no terms of single rows.
  void begin(const TokenBatch& batch, Keep keep = Keep::kAnyPath);
  // The pending batch with further rows behind it: for a tree that grows as it is run. Not for recurrent layers.
  void extend(const TokenBatch& batch);
  // Keeps the rows of `path` (each the child of the one before, the first without a parent), drops the others.
  // Throws kInvalidRequest for anything else; nothing has changed then.
  void commit(std::span<const int32_t> path);
  void rollback();
  // Forgets the committed positions from `length` on, and returns the new length. It is less than `length` when recurrent
  // layers do not have their state there any more: the caller then runs the tokens in between again. Throws
  // kInvalidRequest when there are fewer positions, or rows pending.
  int64_t truncate(int64_t length);
  // An independent copy, pending rows included.
  SequenceState branch(const HyperParameters& h) const;

  // Cell of pending row r.
  int64_t cell(int64_t r) const { return n_committed_ + r; }
  const PathCells& path(int64_t r) const { return paths_[static_cast<size_t>(r)]; }

  RecurrentState& recurrent() { return recurrent_; }
  // Cells on a device with copies of these; nullptr: none.
  DeviceCells* device_cells() const { return device_cells_.get(); }
  void set_device_cells(std::unique_ptr<DeviceCells> cells) { device_cells_ = std::move(cells); }

  CacheTypes cache_types() const { return {k_planes_.type, v_planes_.type}; }
  // Keys and values of one layer and KV head: [cell][head_dim]. Of a latent model the values are empty: they are the
  // leading elements of the keys.
  CellRows keys(int64_t layer, int64_t head) const { return k_planes_.rows(k_.data(), layer, head, n_cells_); }
  CellRows values(int64_t layer, int64_t head) const { return v_planes_.rows(v_.data(), layer, head, n_cells_); }
  // The row of one cell, for write_cache_row.
  std::byte* key(int64_t layer, int64_t head, int64_t cell) const {
    return k_.data() + k_planes_.at(layer, head, n_cells_) + cell * k_planes_.row_bytes(layer);
  }
  std::byte* value(int64_t layer, int64_t head, int64_t cell) const {
    return v_.data() + v_planes_.at(layer, head, n_cells_) + cell * v_planes_.row_bytes(layer);
  }

 private:
  // Where the planes [cell][head_dim] of all layers and KV heads lie, one behind the other. In bytes.
  struct Planes {
    struct Layer {
      int64_t offset;  // per cell, of the layers before
      int64_t n_heads;
      int64_t row;  // of one head in a cell
    };
    DType type;
    std::vector<Layer> layers;
    int64_t cell = 0;  // of all

    void add(int64_t n_heads, int64_t head_dim);
    int64_t row_bytes(int64_t layer) const { return layers[static_cast<size_t>(layer)].row; }
    int64_t at(int64_t layer, int64_t head, int64_t n_cells) const {
      const Layer& l = layers[static_cast<size_t>(layer)];
      return (l.offset + head * l.row) * n_cells;
    }
    CellRows rows(const std::byte* data, int64_t layer, int64_t head, int64_t n_cells) const {
      return {data + at(layer, head, n_cells), row_bytes(layer), type};
    }
    uint64_t bytes(int64_t n_cells) const;
    // For every plane: where it begins and its row's size.
    template <typename Visit>
    void each(int64_t n_cells, const Visit& visit) const {
      for (int64_t i = 0; i < std::ssize(layers); ++i) {
        for (int64_t head = 0; head < layers[static_cast<size_t>(i)].n_heads; ++head) {
          visit(at(i, head, n_cells), row_bytes(i));
        }
      }
    }
  };
  static Planes key_planes(const HyperParameters& h, DType type);
  static Planes value_planes(const HyperParameters& h, DType type);
  void require_room(const TokenBatch& batch) const;
  void add_rows(const TokenBatch& batch);
  void move_cell(int64_t from, int64_t to);

  Planes k_planes_;
  Planes v_planes_;
  int64_t n_ctx_;
  int64_t n_cells_;
  int64_t n_committed_ = 0;
  std::vector<int32_t> parents_;  // of pending rows
  std::vector<PathCells> paths_;  // of pending rows
  PageBuffer k_;
  PageBuffer v_;
  RecurrentState recurrent_;
  std::unique_ptr<DeviceCells> device_cells_;
};

}  // namespace expertree
