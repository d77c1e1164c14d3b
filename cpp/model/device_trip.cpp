// Layers of a chunk in one round trip to a device: rows of the residual stream go there, and come back behind the first
// layer whose feed-forward part is not the device's, or as the best logits behind the last layer.
#include <algorithm>
#include <cstring>

#include "cpp/model/forward.h"

namespace expertree {

// Cells for sequences that have none, and what all layers are told of the chunk's rows.
void Forward::prepare_device_rows(const Chunk& chunk) {
  use_device_rows_ = false;
  has_sent_rows_ = false;
  has_logits_ = false;
  one_by_one_ = false;
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

DeviceAttentionRows Forward::rows_for_device(const Chunk& chunk) {
  first_seen_.clear();
  query_scales_.clear();
  const auto layer_with = [this](bool LayerParameters::* property) {
    const auto found = std::ranges::find_if(h_.layers, property);
    return found == h_.layers.end() ? int64_t{-1} : found - h_.layers.begin();
  };
  const int64_t windowed = layer_with(&LayerParameters::windowed);
  const int64_t scaled = layer_with(&LayerParameters::has_temperature);
  for (int64_t r = 0; r < chunk.n; ++r) {
    first_seen_.push_back(windowed < 0 ? 0 : static_cast<int32_t>(first_seen(windowed, chunk.position(r))));
    query_scales_.push_back(scaled < 0 ? 1.0f : query_scale(chunk, scaled, r));
  }
  const auto angles = [](const Angles& from) {
    return DeviceAngles{from.rope->n_pairs(), from.cos.data(), from.sin.data()};
  };
  DeviceAttentionRows rows = device_rows_.rows();
  rows.angles = angles(angles_);
  if (h_.window != Window::kNone) rows.windowed = angles(angles_windowed_);
  rows.query_scale = query_scales_.data();
  rows.first = first_seen_.data();
  return rows;
}

// The layer behind the last one that the device can run from `layer` on before the CPU is needed: for experts, for what is
// recorded of a layer's input, or for room.
int64_t Forward::end_of_trip(const Chunk& chunk, int64_t layer, bool silent) const {
  const auto block_of = [&](int64_t i) -> const DeviceBlock& { return products_.block(products_.block_of(i)); };
  const int64_t n_rows = products_.rows_with_room(chunk.n);
  int64_t n_outputs = kDeviceCallHead + n_rows * h_.n_embd + block_of(layer).outputs(n_rows).size;
  int64_t end = layer + 1;
  for (; !one_by_one_ && end < h_.n_layers - (silent ? 1 : 0); ++end) {
    if (!block_of(end - 1).has_feed_forward() || products_.block_of(end) < 0 || is_tapped(chunk, end)) break;
    if (weights(end).moe.moe_layer >= 0 && h_.moe.router_input == RouterInput::kLayerInput) break;
    n_outputs += block_of(end).outputs(n_rows).size;
    if (n_outputs > products_.max_outputs()) break;
  }
  return end;
}

bool Forward::is_tapped(const Chunk& chunk, int64_t layer) {
  return std::ranges::any_of(chunk.pieces, [&](const Piece& piece) {
    return std::ranges::find(piece.request().tap_layers, layer) != piece.request().tap_layers.end();
  });
}

// Whether a trip that ends behind the last layer can end in the best logits of all rows.
bool Forward::ends_in_logits(const Chunk& chunk, int64_t first) const {
  if (one_by_one_ || n_best_ == 0) return false;
  const int64_t room = products_.rows_with_room(chunk.n);
  int64_t n_rows = 0, n_outputs = kDeviceCallHead;
  for (const Piece& piece : chunk.pieces) {
    if (piece.request().last_hidden) return false;
    n_rows += piece.n_logit_rows();
  }
  for (int64_t i = first; i < h_.n_layers; ++i) {
    n_outputs += products_.block(products_.block_of(i)).outputs(room).size;
  }
  n_outputs += DeviceHead::outputs(room, n_best_).size + room * h_.n_vocab;
  return n_rows == chunk.n && n_outputs <= products_.max_outputs() &&
         products_.block(products_.block_of(h_.n_layers - 1)).has_feed_forward();
}

// Runs layers on the device. The last one of them; -1: the CPU is to run this one.
int64_t Forward::trip_to_device(const Chunk& chunk, int64_t layer, bool silent) {
  if (!has_device_block(layer)) return -1;
  const int64_t end = end_of_trip(chunk, layer, silent);
  const int32_t n_best = end == h_.n_layers && ends_in_logits(chunk, layer) ? n_best_ : 0;
  trip_blocks_.clear();
  for (int64_t i = layer; i < end; ++i) trip_blocks_.push_back(products_.block_of(i));
  const DeviceAttentionRows rows = has_sent_rows_ ? DeviceAttentionRows{} : rows_for_device(chunk);
  const float* outputs = products_.run_blocks(
      trip_blocks_, residual_.data(), chunk.n, has_sent_rows_ ? nullptr : &rows,
      [&](size_t i) -> std::span<const CellFill> {
        gather_cells(chunk, layer + static_cast<int64_t>(i));
        return fills_;
      },
      n_best);
  has_sent_rows_ = true;
  int32_t not_finite;
  std::memcpy(&not_finite, outputs, sizeof not_finite);
  const float* behind = outputs + kDeviceCallHead;
  const int64_t room = products_.rows_with_room(chunk.n);
  for (const int32_t number : trip_blocks_) behind += products_.block(number).outputs(room).size;
  bool is_sound = not_finite == 0;
  if (n_best > 0 && is_sound) {
    head_outputs_.resize(static_cast<size_t>(chunk.n * n_best));
    best_ids_.resize(head_outputs_.size());
    is_sound = products_.take_best(behind, chunk.n, n_best, head_outputs_.data(), best_ids_.data());
  }
  if (!is_sound && (n_best > 0 || end > layer + 1)) {
    // Once more, so that whoever is to say what is wrong, and where, finds it.
    one_by_one_ = true;
    return trip_to_device(chunk, layer, silent);
  }
  const float* of_block = outputs + kDeviceCallHead;
  for (int64_t i = layer; i < end; ++i) {
    const DeviceBlockOutputs at = products_.block(products_.block_of(i)).outputs(room);
    scatter_cells(chunk, i, of_block + at.keys, of_block + at.values);
    if (i == end - 1) take_block(chunk, i, of_block);
    of_block += at.size;
  }
  has_logits_ = n_best > 0;
  if (!has_logits_) std::copy_n(behind, chunk.n * h_.n_embd, residual_.data());
  return end - 1;
}

}  // namespace expertree
