#include "cpp/model/forward.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cpp/base/error.h"
#include "cpp/kernels/canonical.h"
#include "cpp/tensor/dequantize.h"

namespace expertree {
namespace {

// Of a layer norm (canonical.h, C6).
void take_mean_off(float* x, int64_t n) {
  float lane[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % kLanes] = lane[i % kLanes] + x[i];
  const float mean = combine_lanes(lane) / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] - mean;
}

}  // namespace

Forward::Forward(Model& model) : m_(model), h_(model.h_), backend_(*model.backend_), products_(model.products_) {
  for (const LayerParameters& layer : h_.layers) {
    if (layer.mixer == Mixer::kDeltaNet && !delta_net_)
      delta_net_ = std::make_unique<DeltaNet>(h_, backend_, products_);
    if (layer.mixer == Mixer::kShortConv && !short_conv_)
      short_conv_ = std::make_unique<ShortConv>(h_, backend_, products_);
  }
}

void Forward::size_result(const Model& model, const SequencePass& pass) {
  const HyperParameters& h = model.h_;
  const ForwardRequest& request = *pass.request;
  const int64_t n = pass.batch->size() - request.first_row;
  const size_t n_routed = request.routing ? static_cast<size_t>(model.n_moe_layers() * n * h.moe.n_used) : 0;
  pass.result->expert_ids.resize(n_routed);
  pass.result->expert_weights.resize(n_routed);
}

void Forward::run(std::span<const SequencePass> sequences) {
  try {
    run_all(sequences);
  } catch (...) {
    m_.share_loss();
    throw;
  }
}

void Forward::run_all(std::span<const SequencePass> sequences) {
  size_logits_of(sequences);
  for (const SequencePass& pass : sequences) {
    size_result(m_, pass);
    prepare_hidden(pass);
  }
  Timeline* timeline = sequences.front().request->recorders.timeline;
  Chunk chunk{.sequences = sequences, .pieces = {}, .rows = {}, .timeline = timeline};
  const auto flush = [&] {
    run_chunk(chunk);
    chunk = {.sequences = sequences, .pieces = {}, .rows = {}, .timeline = timeline};
  };
  for (const SequencePass& pass : sequences) {
    for (int64_t begin = pass.request->first_row; begin < pass.batch->size();) {
      const int64_t n = std::min(kChunkRows - chunk.n, pass.batch->size() - begin);
      chunk.add(pass, begin, n);
      begin += n;
      if (chunk.n == kChunkRows) flush();
    }
  }
  if (chunk.n > 0) flush();
}

void Forward::record_rows(const Chunk& chunk) const {
  for (const Piece& piece : chunk.pieces) {
    RowRecorder* rows = piece.request().recorders.rows;
    if (rows == nullptr) continue;
    rows->add(
        std::span(piece.pass.batch->tokens).subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.n)));
  }
}

// Rows that somebody asks about go on through the last layer; of the others it leaves keys and values only. Their part of
// the residual stream is gone after this.
RowChunk Forward::leave_unasked_rows(const Chunk& chunk, int64_t layer) {
  Chunk asked{.sequences = chunk.sequences, .pieces = {}, .rows = {}, .timeline = chunk.timeline};
  for (const Piece& piece : chunk.pieces) {
    const int64_t n = piece.n_asked_rows();
    if (n > 0) asked.add(piece.pass, piece.begin + piece.n - n, n);
  }
  const bool is_plain = h_.layer(layer).mixer == Mixer::kAttention && !h_.is_latent();
  const bool on_device = asked.n > 0 && has_device_block(layer);
  if (asked.n == chunk.n || !is_plain || on_device) return chunk;
  const ZoneScope zone(chunk.timeline, Zone::kAttention, layer);
  leave_keys_values(chunk, layer, Queries::kNone);
  float* to = residual_.data();
  for (const Piece& piece : chunk.pieces) {
    const int64_t n = piece.n_asked_rows();
    const float* from = residual_.data() + (piece.at + piece.n - n) * h_.n_embd;
    to = std::copy(from, from + n * h_.n_embd, to);
  }
  residual_.resize(static_cast<size_t>(asked.n * h_.n_embd));
  rotary_angles(asked);
  return asked;
}

void Forward::run_chunk(const Chunk& all_rows) {
  Chunk chunk = all_rows;
  const bool silent = std::ranges::all_of(chunk.pieces, [](const Piece& piece) { return piece.n_asked_rows() == 0; });
  record_rows(chunk);
  embed(chunk);
  rotary_angles(chunk);
  prepare_device_rows(chunk);
  for (int64_t layer = 0; layer < h_.n_layers; ++layer) {
    chunk.check_stop();
    tap(chunk, layer);
    if (layer == h_.n_layers - 1) {
      chunk = leave_unasked_rows(chunk, layer);
      if (chunk.n == 0) return;
    }
    if (weights(layer).moe.moe_layer >= 0 && h_.moe.router_input == RouterInput::kLayerInput) {
      const ZoneScope zone(chunk.timeline, Zone::kRouter, layer);
      router_scores(chunk, layer);
    }
    layer = mix(chunk, layer, silent);
    if (has_logits_) return give_logits(pieces_with_logits(chunk), n_best_);
    feed_forward_part(chunk, layer);
    check_finite(chunk, layer);
  }
  const ZoneScope zone(chunk.timeline, Zone::kHead);
  last_hidden(chunk);
  logits(chunk);
}

// The last layer of those that are mixed: the ones before it are done.
int64_t Forward::mix(const Chunk& chunk, int64_t layer, bool silent) {
  const ZoneScope zone(chunk.timeline, Zone::kAttention, layer);
  block_ = nullptr;
  is_layer_done_ = false;
  if (const int64_t last = trip_to_device(chunk, layer, silent); last >= 0) return last;
  const Mixer mixer = h_.layer(layer).mixer;
  if (mixer == Mixer::kAttention) {
    attention(chunk, layer);
    return layer;
  }
  const LayerWeights& w = weights(layer);
  normed_.reset(chunk.n, h_.n_embd);
  norm(residual_.data(), w.attn_norm, w.attn_norm_bias, &normed_);
  output_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  recurrent_rows_.clear();
  for (const Piece& piece : chunk.pieces) {
    recurrent_rows_.push_back({&piece.pass.state->recurrent(), piece.begin, piece.n, piece.at});
  }
  if (mixer == Mixer::kDeltaNet) {
    delta_net_->run(w.delta_net, layer, recurrent_rows_, normed_, output_.data());
  } else {
    short_conv_->run(w.short_conv, layer, recurrent_rows_, normed_, output_.data());
  }
  add_to_residual(chunk, w.post_attention_norm);
  return layer;
}

void Forward::embed(const Chunk& chunk) {
  const WeightMatrix& w = m_.weights_.token_embd;
  const auto scale = static_cast<float>(h_.embedding_scale);
  residual_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  for (const Piece& piece : chunk.pieces) {
    float* rows = residual_.data() + piece.at * h_.n_embd;
    if (piece.request().inputs != nullptr) {
      std::copy_n(piece.request().inputs + piece.result_row() * h_.n_embd, piece.n * h_.n_embd, rows);
      continue;
    }
    backend_.pool().parallel_for(piece.n, [&](int64_t r) {
      float* x = rows + r * h_.n_embd;
      dequantize_row(w.dtype, w.data + chunk.row(piece.at + r).token * w.row_bytes, h_.n_embd, x);
      if (scale == 1.0f) return;
      for (int64_t i = 0; i < h_.n_embd; ++i) x[i] = x[i] * scale;
    });
  }
}

void Forward::rotary_angles(const Chunk& chunk) {
  angles_.rope = m_.rope_.get();
  angles_windowed_.rope = m_.rope_windowed_.get();
  // The context decides once for a whole sequence which factors hold, as a past turned by others would not fit.
  const auto is_long = [this](const Chunk::Row& row) {
    return m_.rope_long_ != nullptr && static_cast<double>(row.state->n_ctx()) > h_.yarn.n_ctx_original;
  };
  for (Angles* angles : {&angles_, &angles_windowed_}) {
    const int64_t n_pairs = angles->rope->n_pairs();
    angles->cos.resize(static_cast<size_t>(chunk.n * n_pairs));
    angles->sin.resize(static_cast<size_t>(chunk.n * n_pairs));
    if (angles == &angles_windowed_ && h_.window == Window::kNone) continue;
    backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
      const bool other = angles == &angles_ && is_long(chunk.row(r));
      const Rope& rope = other ? *m_.rope_long_ : *angles->rope;
      rope.angles(chunk.position(r), angles->cos.data() + r * n_pairs, angles->sin.data() + r * n_pairs);
    });
  }
}

void Forward::norm(const float* x, const FloatVector& weight, const FloatVector& bias, Activations* y) const {
  if (h_.layer_norm) {
    std::copy_n(x, y->rows() * y->n(), y->data());
    backend_.for_rows(y->rows(), y->n(), [&](int64_t r) { take_mean_off(y->row(r), y->n()); });
    x = y->data();
  }
  backend_.rms_norm(x, weight.data(), h_.rms_eps, y);
  if (bias.empty()) return;
  backend_.pool().parallel_for(y->rows(), [&](int64_t r) {
    float* row = y->row(r);
    for (int64_t i = 0; i < y->n(); ++i) row[i] = row[i] + bias[static_cast<size_t>(i)];
  });
}

void Forward::add_to_residual(const Chunk& chunk, const FloatVector& post_norm) {
  const auto scale = static_cast<float>(h_.residual_scale);
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    float* x = residual_.data() + r * h_.n_embd;
    float* add = output_.data() + r * h_.n_embd;
    if (!post_norm.empty()) backend_.kernels().rms_norm(add, post_norm.data(), h_.rms_eps, h_.n_embd, add);
    if (scale != 1.0f) {
      for (int64_t i = 0; i < h_.n_embd; ++i) add[i] = add[i] * scale;
    }
    for (int64_t i = 0; i < h_.n_embd; ++i) x[i] = x[i] + add[i];
  });
}

void Forward::check_finite(const Chunk& chunk, int64_t layer) const {
  for (int64_t r = 0; r < chunk.n; ++r) {
    const float* x = residual_.data() + r * h_.n_embd;
    // Bits without the sign above those of the largest finite number borrow into the top bit.
    uint32_t borrows = 0;
    for (int64_t i = 0; i < h_.n_embd; ++i) borrows |= 0x7f7fffffu - (std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
    if (borrows < 0x80000000u) continue;
    throw Error(ErrorCode::kModelFormat,
                m_.path_ + ": layer " + std::to_string(layer) +
                    " gave a value that is not a finite number at position " + std::to_string(chunk.position(r)) +
                    "; the weights of the file are damaged or overflow. Check the file's hash and get it again");
  }
}

}  // namespace expertree
