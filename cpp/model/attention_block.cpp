// Attention of a chunk: projections, norms, rotary embedding, KV cache, each row's own path.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpp/model/forward.h"

namespace expertree {
namespace {

constexpr int64_t kTaskRows = 8;  // of attention

}  // namespace

void Forward::project(const Chunk& chunk, int64_t layer) {
  const LayerWeights& w = m_.weights_.layers[static_cast<size_t>(layer)];
  const AttentionWeights& a = w.attention;
  const int64_t n_q = a.q.rows;
  const int64_t n_k = a.k.rows;
  const int64_t n_v = a.v.rows;
  normed_.reset(chunk.n, h_.n_embd);
  backend_.rms_norm(residual_.data(), w.attn_norm.data(), h_.rms_eps, &normed_);
  q_.resize(static_cast<size_t>(chunk.n * n_q));
  k_.resize(static_cast<size_t>(chunk.n * n_k));
  v_.resize(static_cast<size_t>(chunk.n * n_v));
  const auto bias = [](const FloatVector& b) { return b.empty() ? nullptr : b.data(); };
  const CpuBackend::Product in[] = {{a.q, q_.data(), n_q, bias(a.q_bias)},
                                    {a.k, k_.data(), n_k, bias(a.k_bias)},
                                    {a.v, v_.data(), n_v, bias(a.v_bias)}};
  backend_.matmul(normed_, in);
}

void Forward::leave_keys_values(const Chunk& chunk, int64_t layer) {
  project(chunk, layer);
  store_keys_values(chunk, layer);
}

void Forward::attention(const Chunk& chunk, int64_t layer) {
  const AttentionWeights& a = m_.weights_.layers[static_cast<size_t>(layer)].attention;
  leave_keys_values(chunk, layer);
  attend(chunk, layer);
  if (h_.gated_attention) gate_attention(chunk.n);
  output_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  const float* bias = a.output_bias.empty() ? nullptr : a.output_bias.data();
  const CpuBackend::Product out[] = {{a.output, output_.data(), h_.n_embd, bias}};
  backend_.matmul(attended_, out);
  add_to_residual(chunk.n, output_.data());
}

void Forward::store_keys_values(const Chunk& chunk, int64_t layer) {
  const AttentionWeights& a = m_.weights_.layers[static_cast<size_t>(layer)].attention;
  const int64_t n_pairs = m_.rope_->n_pairs();
  const auto prepare = [&](float* x, int64_t stride, const FloatVector& norm, int64_t n_heads, const float* cos,
                           const float* sin) {
    if (h_.qk_norm == QkNorm::kWholeProjection) {
      backend_.kernels().rms_norm(x, norm.data(), h_.rms_eps, n_heads * h_.head_dim_k, x);
    }
    for (int64_t head = 0; head < n_heads; ++head) {
      float* p = x + head * stride;
      if (h_.qk_norm == QkNorm::kPerHead) backend_.kernels().rms_norm(p, norm.data(), h_.rms_eps, h_.head_dim_k, p);
      m_.rope_->apply(cos, sin, p);
    }
  };
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    const float* cos = cos_.data() + r * n_pairs;
    const float* sin = sin_.data() + r * n_pairs;
    float* q = q_.data() + r * a.q.rows;
    float* k = k_.data() + r * a.k.rows;
    const float* v = v_.data() + r * a.v.rows;
    prepare(q, query_stride(), a.q_norm, h_.n_heads, cos, sin);
    prepare(k, h_.head_dim_k, a.k_norm, h_.n_kv_heads, cos, sin);
    const int64_t cell = chunk.state.cell(chunk.begin + r);
    for (int64_t head = 0; head < h_.n_kv_heads; ++head) {
      std::memcpy(chunk.state.keys(layer, head) + cell * h_.head_dim_k, k + head * h_.head_dim_k,
                  static_cast<size_t>(h_.head_dim_k) * sizeof(float));
      std::memcpy(chunk.state.values(layer, head) + cell * h_.head_dim_v, v + head * h_.head_dim_v,
                  static_cast<size_t>(h_.head_dim_v) * sizeof(float));
    }
  });
}

void Forward::attend(const Chunk& chunk, int64_t layer) {
  const int64_t n_q = h_.n_heads * query_stride();
  const int64_t n_out = h_.n_heads * h_.head_dim_v;
  const int64_t group = h_.n_heads / h_.n_kv_heads;  // query heads that share a KV head
  const float scale = 1.0f / std::sqrt(static_cast<float>(h_.head_dim_k));
  attended_.reset(chunk.n, n_out);
  // A task is some rows of one head: they read its keys and values together. A few rows make tasks of one, for balance.
  const int64_t step = chunk.n >= kTaskRows * h_.n_kv_heads ? kTaskRows : 1;
  const int64_t n_steps = (chunk.n + step - 1) / step;
  backend_.pool().parallel_for(n_steps * h_.n_kv_heads, [&](int64_t task) {
    const int64_t head = task / n_steps;
    const int64_t begin = task % n_steps * step;
    AttendArgs rows[kTaskRows] = {};
    const int64_t n_rows = std::min(step, chunk.n - begin);
    for (int64_t i = 0; i < n_rows; ++i) {
      AttendArgs& args = rows[i];
      const int64_t r = begin + i;
      const PathCells& path = chunk.state.path(chunk.begin + r);
      args.q = q_.data() + r * n_q + head * group * query_stride();
      args.q_stride = query_stride();
      args.n_heads = group;
      args.k = chunk.state.keys(layer, head);
      args.v = chunk.state.values(layer, head);
      args.head_dim_k = h_.head_dim_k;
      args.head_dim_v = h_.head_dim_v;
      args.n_prefix = path.n_prefix;
      args.tail = path.tail.data();
      args.n_tail = static_cast<int64_t>(path.tail.size());
      args.scale = scale;
      args.out = attended_.row(r) + head * group * h_.head_dim_v;
      args.out_stride = h_.head_dim_v;
    }
    backend_.kernels().attend(rows, n_rows);
  });
}

// Each head's output times sigmoid of the gate that stands behind its query.
void Forward::gate_attention(int64_t n) {
  const int64_t d = h_.head_dim_k;
  backend_.pool().parallel_for(n, [&](int64_t r) {
    float* x = q_.data() + r * h_.n_heads * query_stride();
    for (int64_t head = 0; head < h_.n_heads; ++head) {
      float* gate = x + head * query_stride() + d;
      float* y = attended_.row(r) + head * d;
      for (int64_t i = 0; i < d; ++i) gate[i] = -gate[i];
      backend_.kernels().exp_f32(gate, d, gate);
      for (int64_t i = 0; i < d; ++i) y[i] = y[i] * (1.0f / (1.0f + gate[i]));
    }
  });
}

}  // namespace expertree
