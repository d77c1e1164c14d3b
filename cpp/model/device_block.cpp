// What goes to a device with a layer of a chunk, and comes back: cells that it lacks; keys and values for the sequence's own
// cells, and what experts are chosen by (DeviceBlockOutputs).
#include <algorithm>
#include <cstring>

#include "cpp/base/scratch.h"
#include "cpp/model/forward.h"

namespace expertree {

// Of the last block of a trip.
void Forward::take_block(const Chunk& chunk, int64_t layer, const float* outputs) {
  const DeviceBlock& block = products_.block(products_.block_of(layer));
  const DeviceBlockOutputs at = block.outputs(products_.rows_with_room(chunk.n));
  if (block.has_router()) {
    int32_t not_finite;
    std::memcpy(&not_finite, outputs + at.not_finite, sizeof not_finite);
    if (not_finite != 0) refuse_scores(layer);
    const auto n_used = static_cast<size_t>(chunk.n * h_.moe.n_used);
    scores_.assign(outputs + at.scores, outputs + at.scores + chunk.n * h_.moe.n_experts);
    weights_.assign(outputs + at.weights, outputs + at.weights + n_used);
    chosen_.resize(n_used);
    std::memcpy(chosen_.data(), outputs + at.ids, n_used * sizeof(int32_t));
  }
  if (!block.has_feed_forward()) {
    normed_.reset(chunk.n, h_.n_embd);
    std::copy_n(outputs + at.normed, chunk.n * h_.n_embd, normed_.data());
  }
  block_ = &block;
}

// What the sequences have and the device lacks.
void Forward::gather_cells(const Chunk& chunk, int64_t layer) {
  const LayerParameters& p = h_.layer(layer);
  const CacheTypes types = m_.cache_types();
  const int64_t key = cache_row_bytes(types.keys, p.head_dim_k), value = cache_row_bytes(types.values, p.head_dim_v);
  fills_.clear();
  int64_t n_all = 0;
  for (const Piece& piece : chunk.pieces) {
    const SequenceState& state = *piece.pass.state;
    const DeviceCells& there = *state.device_cells();
    const int64_t end = state.cell(piece.begin);
    const int64_t begin = std::min(there.n_valid(layer), end);
    fills_.push_back({there.base() + begin, end - begin, nullptr, nullptr});
    n_all += end - begin;
  }
  fit(&filled_, static_cast<size_t>(n_all * p.n_kv_heads * (key + value)));
  std::byte* to = filled_.data();
  for (size_t i = 0; i < fills_.size(); ++i) {
    CellFill& fill = fills_[i];
    const SequenceState& state = *chunk.pieces[i].pass.state;
    const int64_t begin = fill.cell - state.device_cells()->base();
    std::byte* keys = to;
    std::byte* values = to + fill.n * p.n_kv_heads * key;
    backend_.for_rows(fill.n, p.n_kv_heads * (p.head_dim_k + p.head_dim_v), [&](int64_t c) {
      for (int64_t head = 0; head < p.n_kv_heads; ++head) {
        std::copy_n(state.key(layer, head, begin + c), key, keys + (c * p.n_kv_heads + head) * key);
        std::copy_n(state.value(layer, head, begin + c), value, values + (c * p.n_kv_heads + head) * value);
      }
    });
    fill.keys = keys;
    fill.values = values;
    to = values + fill.n * p.n_kv_heads * value;
  }
}

// The chunk's keys and values, [n][n_kv_heads][head_dim] each, into the sequences' cells.
void Forward::scatter_cells(const Chunk& chunk, int64_t layer, const float* keys, const float* values) {
  const LayerParameters& p = h_.layer(layer);
  const CacheTypes types = m_.cache_types();
  const int64_t k_width = p.n_kv_heads * p.head_dim_k, v_width = p.n_kv_heads * p.head_dim_v;
  backend_.for_rows(chunk.n, k_width + v_width, [&](int64_t r) {
    const SequenceState& state = *chunk.row(r).state;
    for (int64_t head = 0; head < p.n_kv_heads; ++head) {
      write_cache_row(backend_.kernels(), keys + r * k_width + head * p.head_dim_k, p.head_dim_k, types.keys,
                      state.key(layer, head, chunk.cell(r)));
      write_cache_row(backend_.kernels(), values + r * v_width + head * p.head_dim_v, p.head_dim_v, types.values,
                      state.value(layer, head, chunk.cell(r)));
    }
  });
  for (const Piece& piece : chunk.pieces) {
    const SequenceState& state = *piece.pass.state;
    state.device_cells()->set_valid(layer, state.cell(piece.begin + piece.n));
  }
}

}  // namespace expertree
