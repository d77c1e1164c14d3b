// Mixture of experts of a chunk: route, group rows by expert, run each chosen expert once, sum in rank order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"
#include "cpp/kernels/canonical_math.h"
#include "cpp/model/forward.h"

namespace expertree {

// Softmax over all experts, the best n_used (ties to the lower id), then the architecture's rule for the weights.
void Forward::route(const Chunk& chunk, int64_t layer) {
  const MoeParameters& moe = h_.moe;
  const int64_t n_experts = moe.n_experts;
  const int64_t n_used = moe.n_used;
  scores_.resize(static_cast<size_t>(chunk.n * n_experts));
  chosen_.resize(static_cast<size_t>(chunk.n * n_used));
  weights_.resize(static_cast<size_t>(chunk.n * n_used));
  const MoeWeights& w = m_.weights_.layers[static_cast<size_t>(layer)].moe;
  const CpuBackend::Product router[] = {{w.router, scores_.data(), n_experts}};
  backend_.matmul(normed_, router);
  const auto choose = [&](int64_t r) {
    const float* p = scores_.data() + r * n_experts;
    std::vector<int32_t> order(static_cast<size_t>(n_experts));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + n_used, order.end(),
                      [p](int32_t a, int32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
    int32_t* ids = chosen_.data() + r * n_used;
    float* weights = weights_.data() + r * n_used;
    float sum = 0.0f;
    for (int64_t i = 0; i < n_used; ++i) {
      ids[i] = order[static_cast<size_t>(i)];
      weights[i] = p[ids[i]];
      sum = sum + weights[i];
    }
    if (moe.renormalize) {
      for (int64_t i = 0; i < n_used; ++i) weights[i] = weights[i] / std::max(sum, kMinWeightSum);
    }
  };
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    float* p = scores_.data() + r * n_experts;
    backend_.kernels().softmax(p, n_experts, p);
    if (std::isnan(p[0])) {  // one NaN or infinite score makes the whole row NaN
      throw Error(ErrorCode::kModelFormat,
                  m_.path_ + ": the router of layer " + std::to_string(layer) +
                      " gave a score that is not a finite number; the weights of the file are damaged. Check the "
                      "file's hash and get it again");
    }
    choose(r);
  });
  if (chunk.most_experts > 0 && chunk.most_experts < n_experts) {
    drop_light_experts(chunk);
    backend_.pool().parallel_for(chunk.n, choose);
  }
  if (chunk.routing == nullptr) return;
  const int64_t n_rows = chunk.batch.size() - (chunk.begin - chunk.at);
  const int64_t base = (w.moe_layer * n_rows + chunk.at) * n_used;
  std::copy_n(chosen_.data(), chunk.n * n_used, chunk.routing->expert_ids.data() + base);
  std::copy_n(weights_.data(), chunk.n * n_used, chunk.routing->expert_weights.data() + base);
}

// A slot is (row, rank): its number is row * n_used + rank.
void Forward::mixture(const Chunk& chunk, int64_t layer) {
  const MoeWeights& w = m_.weights_.layers[static_cast<size_t>(layer)].moe;
  const int64_t n_used = h_.moe.n_used;
  const int64_t n_slots = chunk.n * n_used;
  route(chunk, layer);

  // Slots by expert, rows in order within an expert (a counting sort).
  group_begin_.assign(static_cast<size_t>(h_.moe.n_experts + 1), 0);
  for (int64_t s = 0; s < n_slots; ++s) ++group_begin_[static_cast<size_t>(chosen_[static_cast<size_t>(s)]) + 1];
  std::partial_sum(group_begin_.begin(), group_begin_.end(), group_begin_.begin());
  group_slots_.resize(static_cast<size_t>(n_slots));
  group_rows_.resize(static_cast<size_t>(n_slots));
  std::vector<int32_t> next(group_begin_.begin(), group_begin_.end() - 1);
  for (int64_t s = 0; s < n_slots; ++s) {
    const int32_t at = next[static_cast<size_t>(chosen_[static_cast<size_t>(s)])]++;
    group_slots_[static_cast<size_t>(at)] = static_cast<int32_t>(s);
    group_rows_[static_cast<size_t>(at)] = static_cast<int32_t>(s / n_used);
  }

  outputs_.resize(static_cast<size_t>(n_slots * h_.n_embd));
  std::vector<int32_t> used;
  for (int32_t e = 0; e < h_.moe.n_experts; ++e) {
    if (group_begin_[static_cast<size_t>(e) + 1] > group_begin_[static_cast<size_t>(e)]) used.push_back(e);
  }
  ExpertLease lease = m_.experts_->acquire(static_cast<int32_t>(w.moe_layer), used);  // begins to read the missing ones
  hint_next_layer(chunk, layer);
  if (h_.moe.shared != SharedExpert::kNone) {
    shared_expert(chunk, w);  // leaves its output, scaled, in output_
  } else {
    output_.assign(static_cast<size_t>(chunk.n * h_.n_embd), 0.0f);
  }
  for (auto wave = lease.next(chunk.check_stop); !wave.empty(); wave = lease.next(chunk.check_stop)) {
    run_experts(w.moe_layer, wave);
  }
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    std::vector<float> sum(static_cast<size_t>(h_.n_embd), 0.0f);
    for (int64_t i = 0; i < n_used; ++i) {
      const int64_t slot = r * n_used + i;
      backend_.kernels().axpy(weights_[static_cast<size_t>(slot)], outputs_.data() + slot * h_.n_embd, h_.n_embd,
                              sum.data());
    }
    float* y = output_.data() + r * h_.n_embd;
    for (int64_t i = 0; i < h_.n_embd; ++i) y[i] = sum[static_cast<size_t>(i)] + y[i];
  });
}

// Runs experts that are in memory, on the rows that chose them, into the rows' slots of outputs_.
void Forward::run_experts(int64_t moe_layer, std::span<const int32_t> experts) {
  const int64_t start_us = now_us();
  const int64_t n_ff = h_.moe.n_ff;
  const auto size_of = [this](int32_t e) {
    return group_begin_[static_cast<size_t>(e) + 1] - group_begin_[static_cast<size_t>(e)];
  };
  int64_t n_rows = 0;
  for (const int32_t e : experts) n_rows += size_of(e);
  gate_.resize(static_cast<size_t>(n_rows * n_ff));
  up_.resize(static_cast<size_t>(n_rows * n_ff));
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
    const auto weights = [&](ExpertProjection p) { return m_.experts_->weights(moe_layer, e, p); };
    in.push_back({weights(kGate), gate_.data(), n_ff, nullptr, rows, wave_rows, n});
    in.push_back({weights(kUp), up_.data(), n_ff, nullptr, rows, wave_rows, n});
    out.push_back({weights(kDown), outputs_.data(), h_.n_embd, nullptr, wave_rows, slots, n});
    begin += n;
  }
  backend_.matmul(normed_, in);
  hidden_.reset(n_rows, n_ff);
  backend_.pool().parallel_for(n_rows, [&](int64_t r) {
    backend_.kernels().silu_mul(gate_.data() + r * n_ff, up_.data() + r * n_ff, n_ff, hidden_.row(r));
  });
  backend_.matmul(hidden_, out);
  m_.experts_->record_run(static_cast<int64_t>(experts.size()), n_rows, now_us() - start_us);
}

void Forward::shared_expert(const Chunk& chunk, const MoeWeights& w) {
  shared_gate_.resize(static_cast<size_t>(chunk.n));
  const CpuBackend::Product gate[] = {{w.shared_gate, shared_gate_.data(), 1}};
  backend_.matmul(normed_, gate);
  feed_forward(w.shared, h_.moe.n_ff_shared);
  for (int64_t r = 0; r < chunk.n; ++r) {
    const float scale = 1.0f / (1.0f + canonical_exp(-shared_gate_[static_cast<size_t>(r)]));
    float* y = output_.data() + r * h_.n_embd;
    for (int64_t i = 0; i < h_.n_embd; ++i) y[i] = y[i] * scale;
  }
}

}  // namespace expertree
