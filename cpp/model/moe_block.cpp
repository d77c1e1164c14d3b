// Mixture of experts of a chunk: route, group rows by expert, run each chosen expert once, sum in rank order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpp/base/clock.h"
#include "cpp/base/scratch.h"
#include "cpp/kernels/canonical_math.h"
#include "cpp/model/forward.h"

namespace expertree {

// A slot is (row, rank): its number is row * n_used + rank.
void Forward::mixture(const Chunk& chunk, int64_t layer) {
  const MoeWeights& w = weights(layer).moe;
  const std::vector<int32_t> used = find_experts(chunk, layer);
  fit(&outputs_, static_cast<size_t>(chunk.n * h_.moe.n_used * h_.n_embd));
  if (m_.vram_ != nullptr) {
    mixture_with_device(chunk, layer, used);
  } else {
    ExpertLease lease = ask_for_experts(chunk, layer, used, {});
    hint_next_layer(chunk, layer);
    begin_beside(chunk, layer);
    Activations& inputs = expert_inputs(chunk, w);
    for (auto wave = next_wave(chunk, layer, &lease); !wave.empty(); wave = next_wave(chunk, layer, &lease)) {
      run_experts(w, inputs, wave);
    }
    end_beside(chunk, layer);
  }
  sum_experts(chunk, w);
}

// Each once.
std::vector<int32_t> Forward::find_experts(const Chunk& chunk, int64_t layer) {
  const int64_t moe_layer = weights(layer).moe.moe_layer;
  const ZoneScope zone(chunk.timeline, Zone::kRouter, layer);
  route(chunk, layer);
  group_by_expert(chunk);
  record_routing(chunk, moe_layer);
  count_uses(chunk, moe_layer);
  std::vector<int32_t> used;
  for (int32_t e = 0; e < h_.moe.n_experts; ++e) {
    if (group_begin_[static_cast<size_t>(e) + 1] > group_begin_[static_cast<size_t>(e)]) used.push_back(e);
  }
  return used;
}

std::vector<int64_t> Forward::rows_of(std::span<const int32_t> experts) const {
  std::vector<int64_t> n_rows;
  for (const int32_t e : experts) {
    n_rows.push_back(group_begin_[static_cast<size_t>(e) + 1] - group_begin_[static_cast<size_t>(e)]);
  }
  return n_rows;
}

void Forward::record_routing(const Chunk& chunk, int64_t moe_layer) const {
  for (const Piece& piece : chunk.pieces) {
    if (RowRecorder* rows = piece.request().recorders.rows) {
      rows->route(moe_layer, chosen_.data() + piece.at * h_.moe.n_used, piece.n);
    }
  }
}

// By rows that are sure to stay.
void Forward::count_uses(const Chunk& chunk, int64_t moe_layer) const {
  std::vector<int32_t> experts;
  int64_t n_rows = 0;
  for (const Piece& piece : chunk.pieces) {
    const int64_t n = !piece.request().provisional ? piece.n : piece.begin == 0 ? 1 : 0;
    const auto first = chosen_.begin() + piece.at * h_.moe.n_used;
    experts.insert(experts.end(), first, first + n * h_.moe.n_used);
    n_rows += n;
  }
  if (n_rows > 0) m_.count_uses(static_cast<int32_t>(moe_layer), experts, n_rows);
}

// Begins to read those that are not in memory.
ExpertLease Forward::ask_for_experts(const Chunk& chunk, int64_t layer, std::span<const int32_t> used,
                                     std::span<const int32_t> on_device) {
  const ZoneScope zone(chunk.timeline, Zone::kWait, layer);
  return m_.experts_->acquire(static_cast<int32_t>(weights(layer).moe.moe_layer), used, on_device);
}

std::span<const int32_t> Forward::next_wave(const Chunk& chunk, int64_t layer, ExpertLease* lease) {
  const ZoneScope zone(chunk.timeline, Zone::kWait, layer);
  return lease->next([&chunk] { chunk.check_stop(); });
}

// Slots by expert, rows in order within an expert (a counting sort).
void Forward::group_by_expert(const Chunk& chunk) {
  const int64_t n_used = h_.moe.n_used;
  const int64_t n_slots = chunk.n * n_used;
  group_begin_.assign(static_cast<size_t>(h_.moe.n_experts + 1), 0);
  for (int64_t s = 0; s < n_slots; ++s) ++group_begin_[static_cast<size_t>(chosen_[static_cast<size_t>(s)]) + 1];
  std::partial_sum(group_begin_.begin(), group_begin_.end(), group_begin_.begin());
  group_slots_.resize(static_cast<size_t>(n_slots));
  group_rows_.resize(static_cast<size_t>(n_slots));
  std::vector<int32_t> next(group_begin_.begin(), group_begin_.end() - 1);
  for (int64_t s = 0; s < n_slots; ++s) {
    const int32_t at = next[static_cast<size_t>(chosen_[static_cast<size_t>(s)])]++;
    group_slots_[static_cast<size_t>(at)] = static_cast<int32_t>(s);
    // Weighted inputs differ from slot to slot.
    group_rows_[static_cast<size_t>(at)] = static_cast<int32_t>(h_.moe.weighs_input ? s : s / n_used);
  }
}

// What runs beside the experts, all of it reading normed_: begun here where a device runs it, and otherwise run.
void Forward::begin_beside(const Chunk& chunk, int64_t layer) {
  const LayerWeights& w = weights(layer);
  const ZoneScope zone(chunk.timeline, Zone::kDense, layer);
  beside_on_device_ = false;
  if (!h_.moe.dense_beside && h_.moe.shared == SharedExpert::kNone) {
    output_.assign(static_cast<size_t>(chunk.n * h_.n_embd), 0.0f);
    return;
  }
  const FeedForwardWeights& beside = h_.moe.dense_beside ? w.dense : w.moe.shared;
  beside_on_device_ = products_.begin_feed_forward(beside, normed_);
  if (!beside_on_device_) feed_forward(beside, h_.moe.dense_beside ? h_.layer(layer).n_ff : h_.moe.n_ff_shared);
}

// Leaves its output in output_, zero when there is nothing.
void Forward::end_beside(const Chunk& chunk, int64_t layer) {
  const LayerWeights& w = weights(layer);
  const ZoneScope zone(chunk.timeline, Zone::kDense, layer);
  if (beside_on_device_) {
    output_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
    products_.end_feed_forward(output_.data());
  }
  const bool gated = h_.moe.shared == SharedExpert::kSigmoidGate;
  if (gated) {
    shared_gate_.resize(static_cast<size_t>(chunk.n));
    const CpuBackend::Product gate[] = {{w.moe.shared_gate, shared_gate_.data(), 1}};
    backend_.matmul(normed_, gate);
  }
  if (!gated && w.moe.beside_norm.empty()) return;
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    float* y = output_.data() + r * h_.n_embd;
    if (gated) {
      const float scale = 1.0f / (1.0f + canonical_exp(-shared_gate_[static_cast<size_t>(r)]));
      for (int64_t i = 0; i < h_.n_embd; ++i) y[i] = y[i] * scale;
    }
    if (!w.moe.beside_norm.empty()) {
      backend_.kernels().rms_norm(y, w.moe.beside_norm.data(), h_.rms_eps, h_.n_embd, y);
    }
  });
}

// What experts read: normed_, a norm of their own, or a row per slot that is weighted already.
Activations& Forward::expert_inputs(const Chunk& chunk, const MoeWeights& w) {
  if (!w.norm.empty()) {
    expert_input_.reset(chunk.n, h_.n_embd);
    norm(residual_.data(), w.norm, {}, &expert_input_);
    return expert_input_;
  }
  if (!h_.moe.weighs_input) return normed_;
  const int64_t n_used = h_.moe.n_used;
  expert_input_.reset(chunk.n * n_used, h_.n_embd);
  backend_.pool().parallel_for(chunk.n * n_used, [&](int64_t slot) {
    const float* x = normed_.row(slot / n_used);
    float* y = expert_input_.row(slot);
    for (int64_t i = 0; i < h_.n_embd; ++i) y[i] = x[i] * weights_[static_cast<size_t>(slot)];
  });
  return expert_input_;
}

// Runs experts that are in memory, on the rows that chose them, into the rows' slots of outputs_.
void Forward::run_experts(const MoeWeights& w, Activations& inputs, std::span<const int32_t> experts) {
  const int64_t start_us = now_us();
  const int64_t n_ff = h_.moe.n_ff;
  const auto size_of = [this](int32_t e) {
    return group_begin_[static_cast<size_t>(e) + 1] - group_begin_[static_cast<size_t>(e)];
  };
  int64_t n_rows = 0;
  for (const int32_t e : experts) n_rows += size_of(e);
  fit(&gate_, static_cast<size_t>(n_rows * n_ff));
  fit(&up_, static_cast<size_t>(n_rows * n_ff));
  wave_rows_.resize(static_cast<size_t>(n_rows));
  std::iota(wave_rows_.begin(), wave_rows_.end(), 0);
  std::vector<CpuBackend::Product> in;
  std::vector<CpuBackend::Product> out;
  int64_t begin = 0;
  for (const int32_t e : experts) {
    const int64_t n = size_of(e);
    const int32_t* rows = group_rows_.data() + group_begin_[static_cast<size_t>(e)];
    const int32_t* slots = group_slots_.data() + group_begin_[static_cast<size_t>(e)];
    const int32_t* wave_rows = wave_rows_.data() + begin;
    const auto matrix = [&](ExpertProjection p) { return m_.experts_->weights(w.moe_layer, e, p); };
    const auto bias = [e](const FloatVector& all, int64_t size) {
      return all.empty() ? nullptr : all.data() + e * size;
    };
    in.push_back({matrix(kGate), gate_.data(), n_ff, bias(w.gate_bias, n_ff), rows, wave_rows, n});
    in.push_back({matrix(kUp), up_.data(), n_ff, bias(w.up_bias, n_ff), rows, wave_rows, n});
    out.push_back({matrix(kDown), outputs_.data(), h_.n_embd, bias(w.down_bias, h_.n_embd), wave_rows, slots, n});
    begin += n;
  }
  backend_.matmul(inputs, in);
  gated_unit(n_rows, n_ff);
  backend_.matmul(hidden_, out);
  m_.experts_->record_run(static_cast<int64_t>(experts.size()), n_rows, now_us() - start_us);
}

// Adds each row's expert outputs, weighted, to what ran beside them in output_.
void Forward::sum_experts(const Chunk& chunk, const MoeWeights& w) {
  const int64_t n_used = h_.moe.n_used;
  const auto scale = static_cast<float>(h_.moe.sum_scale);
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    std::vector<float> sum(static_cast<size_t>(h_.n_embd), 0.0f);
    for (int64_t i = 0; i < n_used; ++i) {
      const int64_t slot = r * n_used + i;
      const float weight = h_.moe.weighs_input ? 1.0f : weights_[static_cast<size_t>(slot)];
      backend_.kernels().axpy(weight, outputs_.data() + slot * h_.n_embd, h_.n_embd, sum.data());
    }
    if (!w.sum_norm.empty()) {
      backend_.kernels().rms_norm(sum.data(), w.sum_norm.data(), h_.rms_eps, h_.n_embd, sum.data());
    }
    float* y = output_.data() + r * h_.n_embd;
    for (int64_t i = 0; i < h_.n_embd; ++i) y[i] = sum[static_cast<size_t>(i)] + y[i];
    if (scale == 1.0f) return;
    for (int64_t i = 0; i < h_.n_embd; ++i) y[i] = y[i] * scale;
  });
}

}  // namespace expertree
