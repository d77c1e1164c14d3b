#include "cpp/model/sequence_state.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cpp/base/error.h"
#include "cpp/tensor/weight.h"

namespace expertree {
namespace {}  // namespace

void SequenceState::Planes::add(int64_t n_heads, int64_t head_dim) {
  const int64_t row = cache_row_bytes(type, head_dim);
  layers.push_back({cell, n_heads, row});
  cell += n_heads * row;
}

uint64_t SequenceState::Planes::bytes(int64_t n_cells) const {
  return static_cast<uint64_t>(cell * n_cells + kOverreadBytes);
}

SequenceState::Planes SequenceState::key_planes(const HyperParameters& h, DType type) {
  Planes planes{.type = type};
  for (const LayerParameters& layer : h.layers) planes.add(layer.n_kv_heads, layer.head_dim_k);
  return planes;
}

SequenceState::Planes SequenceState::value_planes(const HyperParameters& h, DType type) {
  Planes planes{.type = type};
  for (const LayerParameters& layer : h.layers) planes.add(layer.n_kv_heads, h.is_latent() ? 0 : layer.head_dim_v);
  return planes;
}

uint64_t SequenceState::bytes_needed(const HyperParameters& h, int64_t n_ctx, CacheTypes types) {
  return key_planes(h, types.keys).bytes(n_ctx) + value_planes(h, types.values).bytes(n_ctx) +
         RecurrentState::bytes_needed(h);
}

SequenceState::SequenceState(const HyperParameters& h, int64_t n_ctx, CacheTypes types)
    : k_planes_(key_planes(h, types.keys)),
      v_planes_(value_planes(h, types.values)),
      n_ctx_(n_ctx),
      n_cells_(n_ctx + kTreeCells),
      recurrent_(h) {
  require_memory(bytes_needed(h, n_ctx, types), "a KV cache for " + std::to_string(n_ctx) + " tokens");
  k_ = PageBuffer(k_planes_.bytes(n_cells_), "the KV cache");
  v_ = PageBuffer(v_planes_.bytes(n_cells_), "the KV cache");
}

void SequenceState::require_room(const TokenBatch& batch) const {
  int64_t deepest = 0;
  for (const int32_t depth : batch.depths) deepest = std::max<int64_t>(deepest, depth);
  if (n_committed_ + deepest >= n_ctx_) {
    throw Error(ErrorCode::kInvalidRequest, "the sequence would grow to " + std::to_string(n_committed_ + deepest + 1) +
                                                " tokens and the context holds " + std::to_string(n_ctx_) +
                                                "; shorten it, or load the model with a larger context (--ctx)");
  }
  if (n_committed_ + batch.size() > n_cells_) {
    throw Error(ErrorCode::kInvalidRequest, "a tree of " + std::to_string(batch.size()) + " rows after " +
                                                std::to_string(n_committed_) + " tokens does not fit; at most " +
                                                std::to_string(n_cells_ - n_committed_) + " rows fit here");
  }
}

void SequenceState::begin(const TokenBatch& batch, Keep keep) {
  ET_CHECK(paths_.empty());
  require_room(batch);
  recurrent_.begin(batch.parents, keep);
  add_rows(batch);
}

void SequenceState::extend(const TokenBatch& batch) {
  ET_CHECK(parents_.size() <= batch.parents.size() &&
           std::equal(parents_.begin(), parents_.end(), batch.parents.begin()));
  require_room(batch);
  add_rows(batch);
}

// Those that are not there yet.
void SequenceState::add_rows(const TokenBatch& batch) {
  const int64_t first = n_pending();
  parents_ = batch.parents;
  paths_.resize(parents_.size());
  for (int64_t r = first; r < batch.size(); ++r) {
    PathCells& path = paths_[static_cast<size_t>(r)];
    const int32_t parent = parents_[static_cast<size_t>(r)];
    if (parent >= 0) {
      path = paths_[static_cast<size_t>(parent)];
    } else {
      path.n_prefix = n_committed_;
    }
    // While cells and positions agree the path stays one run, which is how a chain is held.
    if (path.tail.empty() && path.n_prefix == cell(r)) {
      ++path.n_prefix;
    } else {
      path.tail.push_back(static_cast<int32_t>(cell(r)));
    }
  }
}

void SequenceState::move_cell(int64_t from, int64_t to) {
  const auto move = [&](const Planes& planes, std::byte* data) {
    planes.each(n_cells_, [&](int64_t at, int64_t row) {
      std::memcpy(data + at + to * row, data + at + from * row, static_cast<size_t>(row));
    });
  };
  move(k_planes_, k_.data());
  move(v_planes_, v_.data());
}

void SequenceState::commit(std::span<const int32_t> path) {
  int32_t parent = -1;
  for (const int32_t row : path) {
    if (row < 0 || row >= n_pending() || parents_[static_cast<size_t>(row)] != parent) {
      throw Error(ErrorCode::kInvalidRequest, "row " + std::to_string(row) +
                                                  " does not continue the path to commit; give rows of the last "
                                                  "evaluated tree, each the child of the one before");
    }
    parent = row;
  }
  // A row's index is at least its depth, so cells only ever move down, in order.
  int64_t to = n_committed_;
  for (const int32_t row : path) {
    if (cell(row) != to) {
      move_cell(cell(row), to);
      if (device_cells_ != nullptr) device_cells_->changed(to);
    }
    ++to;
  }
  recurrent_.commit(path);
  n_committed_ = to;
  rollback();
}

void SequenceState::rollback() {
  parents_.clear();
  paths_.clear();
  recurrent_.rollback();
}

int64_t SequenceState::truncate(int64_t length) {
  if (length < 0 || length > n_committed_ || n_pending() > 0) {
    throw Error(ErrorCode::kInvalidRequest, "cannot go back to length " + std::to_string(length) +
                                                ": the sequence has " + std::to_string(n_committed_) +
                                                " committed tokens and " + std::to_string(n_pending()) +
                                                " pending ones");
  }
  n_committed_ = recurrent_.truncate(length);
  return n_committed_;
}

SequenceState SequenceState::branch(const HyperParameters& h) const {
  SequenceState copy(h, n_ctx_, cache_types());
  copy.n_committed_ = n_committed_;
  copy.parents_ = parents_;
  copy.paths_ = paths_;
  recurrent_.copy_to(&copy.recurrent_);
  const int64_t used = n_committed_ + n_pending();
  const auto copy_planes = [&](const Planes& planes, const std::byte* from, std::byte* to) {
    planes.each(n_cells_,
                [&](int64_t at, int64_t row) { std::memcpy(to + at, from + at, static_cast<size_t>(used * row)); });
  };
  copy_planes(k_planes_, k_.data(), copy.k_.data());
  copy_planes(v_planes_, v_.data(), copy.v_.data());
  return copy;
}

}  // namespace expertree
