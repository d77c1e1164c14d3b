#include "cpp/model/forward.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cpp/base/error.h"
#include "cpp/tensor/dequantize.h"

namespace expertree {
namespace {

// Rows of one chunk: bounds the scratch; large enough that weights are read few times in a long prefill.
constexpr int64_t kChunkRows = 512;

}  // namespace

Forward::Forward(Model& model) : m_(model), h_(model.h_), backend_(*model.backend_) {
  for (const LayerParameters& layer : h_.layers) {
    if (layer.mixer == Mixer::kDeltaNet && !delta_net_) delta_net_ = std::make_unique<DeltaNet>(h_, backend_);
    if (layer.mixer == Mixer::kShortConv && !short_conv_) short_conv_ = std::make_unique<ShortConv>(h_, backend_);
  }
}

void Forward::run(SequenceState& state, const TokenBatch& batch, const ForwardRequest& request, ForwardResult* result) {
  const int64_t first = request.first_row;
  const int64_t n = batch.size() - first;
  const int64_t n_logit_rows = request.logits == LogitRows::kAll ? n : request.logits == LogitRows::kLast ? 1 : 0;
  require_memory(static_cast<uint64_t>(n_logit_rows * h_.n_vocab) * sizeof(float), "the logits of this batch");
  result->logits.resize(static_cast<size_t>(n_logit_rows * h_.n_vocab));
  const size_t n_routed = request.routing ? static_cast<size_t>(m_.n_moe_layers() * n * h_.moe.n_used) : 0;
  result->expert_ids.resize(n_routed);
  result->expert_weights.resize(n_routed);
  prepare_hidden(n, request, result);
  for (int64_t at = 0; at < n; at += kChunkRows) {
    const Chunk chunk{.state = state,
                      .batch = batch,
                      .begin = first + at,
                      .n = std::min(kChunkRows, n - at),
                      .at = at,
                      .inputs = request.inputs == nullptr ? nullptr : request.inputs + at * h_.n_embd,
                      .routing = request.routing ? result : nullptr,
                      .check_stop = request.check_stop,
                      .most_experts = request.most_experts,
                      .recorder = request.recorder};
    if (chunk.recorder != nullptr) {
      chunk.recorder->add_rows(
          std::span(batch.tokens).subspan(static_cast<size_t>(chunk.begin), static_cast<size_t>(chunk.n)));
    }
    const bool last_chunk = at + chunk.n == n;
    const bool silent = !request.routing && !request.last_hidden && request.logits != LogitRows::kAll &&
                        (request.logits == LogitRows::kNone || !last_chunk);
    embed(chunk);
    rotary_angles(chunk);
    for (int64_t layer = 0; layer < h_.n_layers; ++layer) {
      if (request.check_stop) request.check_stop();
      tap(chunk, layer, request.tap_layers, result);
      if (weights(layer).moe.moe_layer >= 0 && h_.moe.router_input == RouterInput::kLayerInput) {
        const ZoneScope zone(chunk.recorder, Zone::kRouter, layer);
        router_scores(chunk, layer);
      }
      // Of rows that nobody asks about the last layer leaves keys and values only.
      if (silent && layer == h_.n_layers - 1 && h_.layer(layer).mixer == Mixer::kAttention && !h_.is_latent()) {
        const ZoneScope zone(chunk.recorder, Zone::kAttention, layer);
        leave_keys_values(chunk, layer);
        continue;
      }
      mix(chunk, layer);
      feed_forward_part(chunk, layer);
      check_finite(chunk, layer);
    }
    const ZoneScope zone(chunk.recorder, Zone::kHead);
    if (request.last_hidden) last_hidden(chunk, result);
    logits(chunk, request.logits, result);
  }
}

void Forward::mix(const Chunk& chunk, int64_t layer) {
  const ZoneScope zone(chunk.recorder, Zone::kAttention, layer);
  const Mixer mixer = h_.layer(layer).mixer;
  if (mixer == Mixer::kAttention) return attention(chunk, layer);
  const LayerWeights& w = weights(layer);
  normed_.reset(chunk.n, h_.n_embd);
  norm(residual_.data(), w.attn_norm, w.attn_norm_bias, &normed_);
  output_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  RecurrentState& state = chunk.state.recurrent();
  if (mixer == Mixer::kDeltaNet) {
    delta_net_->run(w.delta_net, layer, chunk.begin, normed_, state, output_.data());
  } else {
    short_conv_->run(w.short_conv, layer, chunk.begin, normed_, state, output_.data());
  }
  add_to_residual(chunk, w.post_attention_norm);
}

void Forward::embed(const Chunk& chunk) {
  const WeightMatrix& w = m_.weights_.token_embd;
  const auto scale = static_cast<float>(h_.embedding_scale);
  residual_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  if (chunk.inputs != nullptr) {
    std::copy_n(chunk.inputs, chunk.n * h_.n_embd, residual_.data());
    return;
  }
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    const int64_t token = chunk.batch.tokens[static_cast<size_t>(chunk.begin + r)];
    float* x = residual_.data() + r * h_.n_embd;
    dequantize_row(w.dtype, w.data + token * w.row_bytes, h_.n_embd, x);
    if (scale == 1.0f) return;
    for (int64_t i = 0; i < h_.n_embd; ++i) x[i] = x[i] * scale;
  });
}

void Forward::rotary_angles(const Chunk& chunk) {
  // The context decides once for a whole sequence which factors hold, as a past turned by others would not fit.
  const bool is_long = m_.rope_long_ != nullptr && static_cast<double>(chunk.state.n_ctx()) > h_.yarn.n_ctx_original;
  angles_.rope = is_long ? m_.rope_long_.get() : m_.rope_.get();
  angles_windowed_.rope = m_.rope_windowed_.get();
  for (Angles* angles : {&angles_, &angles_windowed_}) {
    const int64_t n_pairs = angles->rope->n_pairs();
    angles->cos.resize(static_cast<size_t>(chunk.n * n_pairs));
    angles->sin.resize(static_cast<size_t>(chunk.n * n_pairs));
    if (angles == &angles_windowed_ && h_.window == Window::kNone) continue;
    backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
      angles->rope->angles(chunk.position(r), angles->cos.data() + r * n_pairs, angles->sin.data() + r * n_pairs);
    });
  }
}

void Forward::norm(const float* x, const FloatVector& weight, const FloatVector& bias, Activations* y) const {
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

void Forward::logits(const Chunk& chunk, LogitRows rows, ForwardResult* result) {
  const bool last_chunk = chunk.begin + chunk.n == chunk.batch.size();
  if (rows == LogitRows::kNone || (rows == LogitRows::kLast && !last_chunk)) return;
  const int64_t first = rows == LogitRows::kLast ? chunk.n - 1 : 0;
  normed_.reset(chunk.n - first, h_.n_embd);
  norm(residual_.data() + first * h_.n_embd, m_.weights_.output_norm, m_.weights_.output_norm_bias, &normed_);
  float* rows_out = result->logits.data() + (rows == LogitRows::kLast ? 0 : chunk.at) * h_.n_vocab;
  const FloatVector& bias = m_.weights_.output_bias;
  const CpuBackend::Product head[] = {{m_.weights_.output, rows_out, h_.n_vocab, bias.empty() ? nullptr : bias.data()}};
  backend_.matmul(normed_, head);
  scale_logits((chunk.n - first) * h_.n_vocab, rows_out);
}

// Scale, then soft cap (canonical.h, C13), over n logits.
void Forward::scale_logits(int64_t n, float* logits) const {
  const auto scale = static_cast<float>(h_.logit_scale);
  const auto cap = static_cast<float>(h_.logit_softcap);
  if (scale == 1.0f && cap == 0.0f) return;
  constexpr int64_t kTaskLogits = 4096;
  backend_.pool().parallel_for((n + kTaskLogits - 1) / kTaskLogits, [&](int64_t task) {
    float* x = logits + task * kTaskLogits;
    const int64_t size = std::min(kTaskLogits, n - task * kTaskLogits);
    if (scale != 1.0f) {
      for (int64_t i = 0; i < size; ++i) x[i] = x[i] * scale;
    }
    if (cap == 0.0f) return;
    for (int64_t i = 0; i < size; ++i) x[i] = x[i] * (2.0f / cap);
    backend_.kernels().exp_f32(x, size, x);
    for (int64_t i = 0; i < size; ++i) x[i] = cap * (1.0f - 2.0f / (x[i] + 1.0f));
  });
}

}  // namespace expertree
