// Layers of a chunk in one round trip to a device: rows of the residual stream go there, and come back behind the first
// layer that the device has not all of, or as the best logits behind the last layer.
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

// Whether a trip runs the layer's experts, too.
bool Forward::mixes_there(const Chunk& chunk, int64_t layer) const {
  if (one_by_one_ || m_.vram_ == nullptr || !products_.block(products_.block_of(layer)).has_mixture()) return false;
  if (products_.rows_with_room(chunk.n) * h_.moe.n_used > m_.vram_->max_pairs()) return false;
  // What a budget of experts leaves of a choice, the CPU says.
  const auto is_cut = [](const Piece& piece) { return piece.request().most_experts > 0; };
  if (std::ranges::any_of(chunk.pieces, is_cut)) return false;
  return m_.vram_->may_run_whole(static_cast<int32_t>(weights(layer).moe.moe_layer));
}

// Whether a trip runs the layer to its end.
bool Forward::ends_there(const Chunk& chunk, int64_t layer) const {
  return products_.block(products_.block_of(layer)).has_feed_forward() || mixes_there(chunk, layer);
}

// The layer behind the last one that the device can run from `layer` on before the CPU is needed: for experts, for what is
// recorded of a layer's input, or for room.
int64_t Forward::end_of_trip(const Chunk& chunk, int64_t layer, bool silent) const {
  const auto block_of = [&](int64_t i) -> const DeviceBlock& { return products_.block(products_.block_of(i)); };
  const int64_t n_rows = products_.rows_with_room(chunk.n);
  int64_t n_outputs = kDeviceCallHead + n_rows * h_.n_embd + block_of(layer).outputs(n_rows).size;
  int64_t end = layer + 1;
  for (; !one_by_one_ && end < h_.n_layers - (silent ? 1 : 0); ++end) {
    if (!ends_there(chunk, end - 1) || products_.block_of(end) < 0 || is_tapped(chunk, end)) break;
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
  return n_rows == chunk.n && n_outputs <= products_.max_outputs() && ends_there(chunk, h_.n_layers - 1);
}

// Of the mixtures of a trip, whose outputs these are: whether all scores are finite numbers.
bool Forward::are_routers_sound(std::span<const float> outputs, int64_t room) const {
  for (const BlockRun& run : trip_) {
    const DeviceBlockOutputs at = products_.block(run.block).outputs(room);
    int32_t not_finite = 0;
    if (run.mixture) std::memcpy(&not_finite, outputs.data() + at.not_finite, sizeof not_finite);
    if (not_finite != 0) return false;
    outputs = outputs.subspan(static_cast<size_t>(at.size));
  }
  return true;
}

// Runs layers on the device. The last one of them; -1: the CPU is to run this one.
int64_t Forward::trip_to_device(const Chunk& chunk, int64_t layer, bool silent) {
  if (!has_device_block(layer)) return -1;
  const int64_t end = end_of_trip(chunk, layer, silent);
  const int32_t n_best = end == h_.n_layers && ends_in_logits(chunk, layer) ? n_best_ : 0;
  trip_.clear();
  for (int64_t i = layer; i < end; ++i) trip_.push_back({products_.block_of(i), mixes_there(chunk, i)});
  const DeviceAttentionRows rows = has_sent_rows_ ? DeviceAttentionRows{} : rows_for_device(chunk);
  const float* outputs = products_.run_blocks(
      trip_, residual_.data(), chunk.n, has_sent_rows_ ? nullptr : &rows,
      [&](size_t i) -> std::span<const CellFill> {
        gather_cells(chunk, layer + static_cast<int64_t>(i));
        return fills_;
      },
      n_best);
  has_sent_rows_ = true;
  int32_t not_finite;
  std::memcpy(&not_finite, outputs, sizeof not_finite);
  const float* of_block = outputs + kDeviceCallHead;
  const float* behind = of_block;
  const int64_t room = products_.rows_with_room(chunk.n);
  for (const BlockRun& run : trip_) behind += products_.block(run.block).outputs(room).size;
  bool is_sound = not_finite == 0 && are_routers_sound({of_block, behind}, room);
  if (n_best > 0 && is_sound) {
    head_outputs_.resize(static_cast<size_t>(chunk.n * n_best));
    best_ids_.resize(head_outputs_.size());
    is_sound = products_.take_best(behind, chunk.n, n_best, head_outputs_.data(), best_ids_.data());
  }
  if (!is_sound && (n_best > 0 || end > layer + 1 || trip_.back().mixture)) {
    // Once more, so that whoever is to say what is wrong, and where, finds it.
    one_by_one_ = true;
    return trip_to_device(chunk, layer, silent);
  }
  for (int64_t i = layer; i < end; ++i) {
    const BlockRun& run = trip_[static_cast<size_t>(i - layer)];
    const DeviceBlockOutputs at = products_.block(run.block).outputs(room);
    scatter_cells(chunk, i, of_block + at.keys, of_block + at.values);
    if (i == end - 1 || run.mixture) take_block(chunk, i, of_block);
    if (run.mixture) note_mixture(chunk, i);
    of_block += at.size;
  }
  is_layer_done_ = block_->has_feed_forward() || trip_.back().mixture;
  has_logits_ = n_best > 0;
  if (!has_logits_) std::copy_n(behind, chunk.n * h_.n_embd, residual_.data());
  return end - 1;
}

}  // namespace expertree
