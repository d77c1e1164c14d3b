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
  const auto has = [this](Mixer mixer) { return std::ranges::find(h_.mixers, mixer) != h_.mixers.end(); };
  if (has(Mixer::kDeltaNet)) delta_net_ = std::make_unique<DeltaNet>(h_, backend_);
  if (has(Mixer::kShortConv)) short_conv_ = std::make_unique<ShortConv>(h_, backend_);
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
    const Chunk chunk{state,
                      batch,
                      first + at,
                      std::min(kChunkRows, n - at),
                      at,
                      request.inputs == nullptr ? nullptr : request.inputs + at * h_.n_embd,
                      request.routing ? result : nullptr,
                      request.check_stop,
                      request.most_experts};
    const bool last_chunk = at + chunk.n == n;
    // Of rows that nobody asks about the last layer leaves keys and values only.
    const bool silent = !request.routing && !request.last_hidden && request.logits != LogitRows::kAll &&
                        (request.logits == LogitRows::kNone || !last_chunk);
    embed(chunk);
    rotary_angles(chunk);
    for (int64_t layer = 0; layer < h_.n_layers; ++layer) {
      if (request.check_stop) request.check_stop();
      tap(chunk, layer, request.tap_layers, result);
      if (silent && layer == h_.n_layers - 1 && h_.mixer(layer) == Mixer::kAttention) {
        leave_keys_values(chunk, layer);
        continue;
      }
      mix(chunk, layer);
      const LayerWeights& w = m_.weights_.layers[static_cast<size_t>(layer)];
      normed_.reset(chunk.n, h_.n_embd);
      backend_.rms_norm(residual_.data(), w.ffn_norm.data(), h_.rms_eps, &normed_);
      if (w.moe.moe_layer >= 0) {
        mixture(chunk, layer);
      } else {
        feed_forward(w.dense, h_.n_ff);
      }
      add_to_residual(chunk.n, output_.data());
      check_finite(chunk, layer);
    }
    if (request.last_hidden) last_hidden(chunk, result);
    logits(chunk, request.logits, result);
  }
}

void Forward::mix(const Chunk& chunk, int64_t layer) {
  const Mixer mixer = h_.mixer(layer);
  if (mixer == Mixer::kAttention) return attention(chunk, layer);
  const LayerWeights& w = m_.weights_.layers[static_cast<size_t>(layer)];
  normed_.reset(chunk.n, h_.n_embd);
  backend_.rms_norm(residual_.data(), w.attn_norm.data(), h_.rms_eps, &normed_);
  output_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  RecurrentState& state = chunk.state.recurrent();
  if (mixer == Mixer::kDeltaNet) {
    delta_net_->run(w.delta_net, layer, chunk.begin, normed_, state, output_.data());
  } else {
    short_conv_->run(w.short_conv, layer, chunk.begin, normed_, state, output_.data());
  }
  add_to_residual(chunk.n, output_.data());
}

void Forward::embed(const Chunk& chunk) {
  const WeightMatrix& w = m_.weights_.token_embd;
  residual_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  if (chunk.inputs != nullptr) {
    std::copy_n(chunk.inputs, chunk.n * h_.n_embd, residual_.data());
    return;
  }
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    const int64_t token = chunk.batch.tokens[static_cast<size_t>(chunk.begin + r)];
    dequantize_row(w.dtype, w.data + token * w.row_bytes, h_.n_embd, residual_.data() + r * h_.n_embd);
  });
}

void Forward::rotary_angles(const Chunk& chunk) {
  const int64_t n_pairs = m_.rope_->n_pairs();
  cos_.resize(static_cast<size_t>(chunk.n * n_pairs));
  sin_.resize(static_cast<size_t>(chunk.n * n_pairs));
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    const int64_t position = chunk.state.n_committed() + chunk.batch.depths[static_cast<size_t>(chunk.begin + r)];
    m_.rope_->angles(position, cos_.data() + r * n_pairs, sin_.data() + r * n_pairs);
  });
}

void Forward::feed_forward(const FeedForwardWeights& w, int64_t n_ff) {
  const int64_t n = normed_.rows();
  gate_.resize(static_cast<size_t>(n * n_ff));
  up_.resize(static_cast<size_t>(n * n_ff));
  output_.resize(static_cast<size_t>(n * h_.n_embd));
  const CpuBackend::Product in[] = {{w.gate, gate_.data(), n_ff}, {w.up, up_.data(), n_ff}};
  backend_.matmul(normed_, in);
  hidden_.reset(n, n_ff);
  backend_.pool().parallel_for(n, [&](int64_t r) {
    backend_.kernels().silu_mul(gate_.data() + r * n_ff, up_.data() + r * n_ff, n_ff, hidden_.row(r));
  });
  const CpuBackend::Product out[] = {{w.down, output_.data(), h_.n_embd}};
  backend_.matmul(hidden_, out);
}

void Forward::add_to_residual(int64_t n, const float* y) {
  backend_.pool().parallel_for(n, [&](int64_t r) {
    float* x = residual_.data() + r * h_.n_embd;
    const float* add = y + r * h_.n_embd;
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
    const int64_t position = chunk.state.n_committed() + chunk.batch.depths[static_cast<size_t>(chunk.begin + r)];
    throw Error(ErrorCode::kModelFormat,
                m_.path_ + ": layer " + std::to_string(layer) +
                    " gave a value that is not a finite number at position " + std::to_string(position) +
                    "; the weights of the file are damaged or overflow. Check the file's hash and get it again");
  }
}

void Forward::logits(const Chunk& chunk, LogitRows rows, ForwardResult* result) {
  const bool last_chunk = chunk.begin + chunk.n == chunk.batch.size();
  if (rows == LogitRows::kNone || (rows == LogitRows::kLast && !last_chunk)) return;
  const int64_t first = rows == LogitRows::kLast ? chunk.n - 1 : 0;
  normed_.reset(chunk.n - first, h_.n_embd);
  backend_.rms_norm(residual_.data() + first * h_.n_embd, m_.weights_.output_norm.data(), h_.rms_eps, &normed_);
  const int64_t first_result = rows == LogitRows::kLast ? 0 : chunk.at;
  const CpuBackend::Product head[] = {
      {m_.weights_.output, result->logits.data() + first_result * h_.n_vocab, h_.n_vocab}};
  backend_.matmul(normed_, head);
}

}  // namespace expertree
