#include "cpp/spec/drafters/eagle3_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpp/base/error.h"
#include "cpp/tensor/dequantize.h"

namespace expertree {
namespace {

constexpr int64_t kLeastCells = 256;

CellRows float_rows(const std::vector<float>& plane, int64_t head_dim) {
  return {reinterpret_cast<const std::byte*>(plane.data()), head_dim * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

Eagle3Layer::Eagle3Layer(Model& target, std::shared_ptr<const Eagle3Head> head)
    : backend_(target.backend()), head_(std::move(head)), rope_(head_->h, head_->rope_factors) {
  keys_.resize(static_cast<size_t>(head_->h.n_kv_heads));
  values_.resize(static_cast<size_t>(head_->h.n_kv_heads));
}

void Eagle3Layer::first_states(const float* features, int64_t n, float* states) {
  features_.reset(n, n_features());
  const float* w = head_->feature_norm.empty() ? nullptr : head_->feature_norm.data();
  if (w != nullptr) {
    backend_.rms_norm(features, w, head_->h.rms_eps, &features_);
  } else {
    std::copy_n(features, n * n_features(), features_.data());
  }
  const CpuBackend::Product fc[] = {{head_->fc, states, n_embd()}};
  backend_.matmul(features_, fc);
}

void Eagle3Layer::read(std::span<const Row> rows, Activations* out) {
  const WeightMatrix& w = head_->token_embd;
  const float eps = head_->h.rms_eps;
  out->reset(std::ssize(rows), 2 * n_embd());
  backend_.pool().parallel_for(std::ssize(rows), [&](int64_t r) {
    const Row& row = rows[static_cast<size_t>(r)];
    float* x = out->row(r);
    dequantize_row(w.dtype, w.data + row.token * w.row_bytes, n_embd(), x);
    backend_.kernels().rms_norm(x, head_->embedding_norm.data(), eps, n_embd(), x);
    backend_.kernels().rms_norm(row.state, head_->state_norm.data(), eps, n_embd(), x + n_embd());
  });
}

void Eagle3Layer::reserve_cells(int64_t n_cells) {
  if (n_cells <= n_cells_) return;
  const int64_t grown = std::max({n_cells, 2 * n_cells_, kLeastCells});
  const HyperParameters& h = head_->h;
  const int64_t floats = (h.head_dim_k + h.head_dim_v) * h.n_kv_heads * grown;
  require_memory(static_cast<uint64_t>(floats) * sizeof(float), "the draft head's KV cache");
  for (auto& plane : keys_) plane.resize(static_cast<size_t>(grown * h.head_dim_k + kOverreadFloats));
  for (auto& plane : values_) plane.resize(static_cast<size_t>(grown * h.head_dim_v + kOverreadFloats));
  n_cells_ = grown;
}

void Eagle3Layer::run(std::span<const Row> rows, int64_t first, float* outputs) {
  const AttentionWeights& a = head_->attention;
  const auto n = std::ssize(rows);
  const int64_t n_out = n - first;
  for (const Row& row : rows) reserve_cells(row.cell + 1);
  read(rows, &inputs_);
  for (auto r = std::ssize(all_rows_); r < n; ++r) all_rows_.push_back(static_cast<int32_t>(r));
  q_.resize(static_cast<size_t>(n_out * a.q.rows));
  k_.resize(static_cast<size_t>(n * a.k.rows));
  v_.resize(static_cast<size_t>(n * a.v.rows));
  CpuBackend::Product q{a.q, q_.data(), a.q.rows};
  q.x_rows = all_rows_.data() + first;
  q.y_rows = all_rows_.data();
  q.n_rows = n_out;
  const CpuBackend::Product in[] = {{a.k, k_.data(), a.k.rows}, {a.v, v_.data(), a.v.rows}, q};
  backend_.matmul(inputs_, std::span(in).first(n_out > 0 ? 3 : 2));
  store_keys_values(rows);
  if (n_out == 0) return;
  attend(rows, first);
  mixed_.resize(static_cast<size_t>(n_out * n_embd()));
  const CpuBackend::Product out[] = {{a.output, mixed_.data(), n_embd()}};
  backend_.matmul(attended_, out);
  for (int64_t r = 0; r < n_out; ++r) {
    const float* residual =
        head_->norm_before_residual ? inputs_.row(first + r) + n_embd() : rows[static_cast<size_t>(first + r)].state;
    float* x = mixed_.data() + r * n_embd();
    for (int64_t i = 0; i < n_embd(); ++i) x[i] = residual[i] + x[i];
  }
  feed_forward(n_out, outputs);
}

void Eagle3Layer::store_keys_values(std::span<const Row> rows) {
  const HyperParameters& h = head_->h;
  const int64_t n_pairs = rope_.n_pairs();
  cos_.resize(rows.size() * static_cast<size_t>(n_pairs));
  sin_.resize(rows.size() * static_cast<size_t>(n_pairs));
  const auto bytes = [](int64_t n) { return static_cast<size_t>(n) * sizeof(float); };
  backend_.pool().parallel_for(std::ssize(rows), [&](int64_t r) {
    const Row& row = rows[static_cast<size_t>(r)];
    float* cos = cos_.data() + r * n_pairs;
    float* sin = sin_.data() + r * n_pairs;
    rope_.angles(row.position, cos, sin);
    for (int64_t head = 0; head < h.n_kv_heads; ++head) {
      float* k = k_.data() + (r * h.n_kv_heads + head) * h.head_dim_k;
      const float* v = v_.data() + (r * h.n_kv_heads + head) * h.head_dim_v;
      rope_.apply(cos, sin, k);
      std::memcpy(keys_[static_cast<size_t>(head)].data() + row.cell * h.head_dim_k, k, bytes(h.head_dim_k));
      std::memcpy(values_[static_cast<size_t>(head)].data() + row.cell * h.head_dim_v, v, bytes(h.head_dim_v));
    }
  });
}

void Eagle3Layer::attend(std::span<const Row> rows, int64_t first) {
  const HyperParameters& h = head_->h;
  const int64_t n = std::ssize(rows) - first;
  const int64_t n_pairs = rope_.n_pairs();
  const int64_t group = h.n_heads / h.n_kv_heads;  // query heads that share a KV head
  attended_.reset(n, h.n_heads * h.head_dim_v);
  backend_.pool().parallel_for(n * h.n_kv_heads, [&](int64_t task) {
    const int64_t r = task / h.n_kv_heads;
    const int64_t head = task % h.n_kv_heads;
    const Row& row = rows[static_cast<size_t>(first + r)];
    float* q = q_.data() + (r * h.n_heads + head * group) * h.head_dim_k;
    for (int64_t i = 0; i < group; ++i) {
      rope_.apply(cos_.data() + (first + r) * n_pairs, sin_.data() + (first + r) * n_pairs, q + i * h.head_dim_k);
    }
    AttendArgs args{};
    args.q = q;
    args.q_stride = h.head_dim_k;
    args.n_heads = group;
    args.k = float_rows(keys_[static_cast<size_t>(head)], h.head_dim_k);
    args.v = float_rows(values_[static_cast<size_t>(head)], h.head_dim_v);
    args.head_dim_k = h.head_dim_k;
    args.head_dim_v = h.head_dim_v;
    args.n_prefix = row.n_prefix;
    args.tail = row.tail.data();
    args.n_tail = std::ssize(row.tail);
    args.scale = 1.0f / std::sqrt(static_cast<float>(h.head_dim_k));
    args.out = attended_.row(r) + head * group * h.head_dim_v;
    args.out_stride = h.head_dim_v;
    backend_.kernels().attend(&args, 1);
  });
}

// outputs = mixed + feed-forward of its norm.
void Eagle3Layer::feed_forward(int64_t n, float* outputs) {
  const FeedForwardWeights& w = head_->feed_forward;
  const int64_t n_ff = head_->h.n_ff;
  normed_.reset(n, n_embd());
  backend_.rms_norm(mixed_.data(), head_->ffn_norm.data(), head_->h.rms_eps, &normed_);
  gate_.resize(static_cast<size_t>(n * n_ff));
  up_.resize(static_cast<size_t>(n * n_ff));
  const CpuBackend::Product in[] = {{w.gate, gate_.data(), n_ff}, {w.up, up_.data(), n_ff}};
  backend_.matmul(normed_, in);
  hidden_.reset(n, n_ff);
  backend_.pool().parallel_for(n, [&](int64_t r) {
    backend_.kernels().silu_mul(gate_.data() + r * n_ff, up_.data() + r * n_ff, n_ff, hidden_.row(r));
  });
  const CpuBackend::Product out[] = {{w.down, outputs, n_embd()}};
  backend_.matmul(hidden_, out);
  for (int64_t i = 0; i < n * n_embd(); ++i) outputs[i] = mixed_[static_cast<size_t>(i)] + outputs[i];
}

void Eagle3Layer::logits(const float* outputs, int64_t n, float* logits) {
  normed_.reset(n, n_embd());
  backend_.rms_norm(outputs, head_->output_norm.data(), head_->h.rms_eps, &normed_);
  const CpuBackend::Product head[] = {{head_->output, logits, head_->n_draft()}};
  backend_.matmul(normed_, head);
}

uint64_t Eagle3Layer::memory_bytes() const {
  const HyperParameters& h = head_->h;
  const auto kv = static_cast<uint64_t>((h.head_dim_k + h.head_dim_v) * h.n_kv_heads * n_cells_) * sizeof(float);
  return head_->arena.size_bytes() + kv;
}

}  // namespace expertree
