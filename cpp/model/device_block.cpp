// A layer of a chunk on a device, from its attention on: rows of the residual stream go there; what comes back is listed in
// DeviceBlockOutputs. The rows' keys and values are for the sequence's own cells.
#include <algorithm>
#include <cstring>

#include "cpp/base/scratch.h"
#include "cpp/model/forward.h"

namespace expertree {

// Cells for sequences that have none, and what all layers are told of the chunk's rows.
void Forward::prepare_device_rows(const Chunk& chunk) {
  use_device_rows_ = false;
  device_rows_.clear();
  if (products_.cells() == nullptr || products_.is_lost()) return;
  for (const Piece& piece : chunk.pieces) {
    SequenceState& state = *piece.pass.state;
    if (state.device_cells() == nullptr) {
      state.set_device_cells(DeviceCells::take(products_.cells(), state.n_cells(), h_.n_layers));
    }
    if (state.device_cells() == nullptr) return;
    if (!device_rows_.add(state, piece.begin, piece.n, products_.max_tails())) return;
  }
  use_device_rows_ = true;
}

// False: the CPU is to do it.
bool Forward::block_on_device(const Chunk& chunk, int64_t layer) {
  const int32_t number = use_device_rows_ ? products_.block_of(layer) : -1;
  if (number < 0) return false;
  const LayerParameters& p = h_.layer(layer);
  first_seen_.clear();
  query_scales_.clear();
  for (int64_t r = 0; r < chunk.n; ++r) {
    first_seen_.push_back(static_cast<int32_t>(first_seen(layer, chunk.position(r))));
    query_scales_.push_back(query_scale(chunk, layer, r));
  }
  gather_cells(chunk, layer);
  const Angles& angles = p.windowed ? angles_windowed_ : angles_;
  const DeviceAttentionRows rows{.n_pairs = p.has_rope ? angles.rope->n_pairs() : 0,
                                 .cos = angles.cos.data(),
                                 .sin = angles.sin.data(),
                                 .query_scale = p.has_temperature ? query_scales_.data() : nullptr,
                                 .cells = device_rows_.cells().data(),
                                 .first = first_seen_.data(),
                                 .n_tail = device_rows_.n_tail().data(),
                                 .tails = device_rows_.tails(),
                                 .runs = device_rows_.runs()};
  take_block(chunk, layer, products_.block(number),
             products_.run_block(number, residual_.data(), chunk.n, rows, fills_));
  return true;
}

void Forward::take_block(const Chunk& chunk, int64_t layer, const DeviceBlock& block, const float* outputs) {
  const DeviceBlockOutputs at = block.outputs(chunk.n);
  scatter_cells(chunk, layer, outputs + at.keys, outputs + at.values);
  if (block.has_router()) {
    int32_t not_finite;
    std::memcpy(&not_finite, outputs + at.not_finite, sizeof not_finite);
    if (not_finite != 0) refuse_scores(layer);
    const auto n_used = static_cast<size_t>(chunk.n * h_.moe.n_used);
    scores_.assign(outputs + at.scores, outputs + at.weights);
    weights_.assign(outputs + at.weights, outputs + at.ids);
    chosen_.resize(n_used);
    std::memcpy(chosen_.data(), outputs + at.ids, n_used * sizeof(int32_t));
  }
  std::copy_n(outputs + at.residual, chunk.n * h_.n_embd, residual_.data());
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
