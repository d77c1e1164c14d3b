// Attention of a chunk: projections, norms, rotary embedding, KV cache, each row's own path.
#include <algorithm>
#include <cmath>
#include <memory>

#include "cpp/model/forward.h"

namespace expertree {
namespace {

constexpr int64_t kAttendRows = 8;  // of attention, at most
constexpr int64_t kLeastHeads = 4;  // that a task is not divided below: they share each load of a key

struct alignas(64) CacheLine {
  float x[16];
};

// For keys and values that are not floats.
std::unique_ptr<CacheLine[]> decode_scratch(const CellRows& keys, const CellRows& values, const LayerParameters& p) {
  if (keys.dtype == DType::kF32 && values.dtype == DType::kF32) return nullptr;
  const int64_t n = attend_scratch_floats(p.head_dim_k, p.head_dim_v);
  return std::make_unique_for_overwrite<CacheLine[]>(static_cast<size_t>((n + 15) / 16));
}

// Of `group` query heads, when n_tasks of all of them would leave threads without one: fewer.
int64_t heads_of_task(int64_t group, int64_t n_tasks, int64_t n_threads) {
  const int64_t most_parts = std::max<int64_t>(1, group / kLeastHeads);
  const int64_t n_parts = std::clamp<int64_t>(n_threads / n_tasks, 1, most_parts);
  return (group + n_parts - 1) / n_parts;
}

// To +- limit; NaN stays.
void clamp(float limit, std::vector<float>* x) {
  for (float& value : *x) value = value > limit ? limit : value < -limit ? -limit : value;
}

}  // namespace

void Forward::leave_keys_values(const Chunk& chunk, int64_t layer, Queries queries) {
  const LayerWeights& w = weights(layer);
  normed_.reset(chunk.n, h_.n_embd);
  norm(residual_.data(), w.attn_norm, w.attn_norm_bias, &normed_);
  if (h_.is_latent()) return;
  project(chunk, layer, queries);
  store_keys_values(chunk, layer, queries);
}

void Forward::attention(const Chunk& chunk, int64_t layer) {
  const LayerWeights& w = weights(layer);
  leave_keys_values(chunk, layer, Queries::kAll);
  if (h_.is_latent()) {
    latent_attention(chunk, layer);
  } else {
    attend(chunk, layer);
  }
  if (w.attention.gate.present()) gate_attention(chunk.n, w.attention.gate.rows);
  output_.resize(static_cast<size_t>(chunk.n * h_.n_embd));
  const CpuBackend::Product out[] = {
      {w.attention.output, output_.data(), h_.n_embd, data_or_null(w.attention.output_bias)}};
  products_.matmul(attended_, out);
  if (h_.attention_output_scale != 1.0) {
    for (float& x : output_) x = x * static_cast<float>(h_.attention_output_scale);
  }
  add_to_residual(chunk, w.post_attention_norm);
}

void Forward::project(const Chunk& chunk, int64_t layer, Queries queries) {
  const AttentionWeights& a = weights(layer).attention;
  k_.resize(static_cast<size_t>(chunk.n * a.k.rows));
  v_.resize(static_cast<size_t>(chunk.n * (a.v.present() ? a.v.rows : a.k.rows)));
  std::vector<CpuBackend::Product> in;
  if (queries == Queries::kAll) {
    q_.resize(static_cast<size_t>(chunk.n * a.q.rows));
    in.push_back({a.q, q_.data(), a.q.rows, data_or_null(a.q_bias)});
  }
  in.push_back({a.k, k_.data(), a.k.rows, data_or_null(a.k_bias)});
  if (a.v.present()) in.push_back({a.v, v_.data(), a.v.rows, data_or_null(a.v_bias)});
  if (a.gate.present() && queries == Queries::kAll) {
    attention_gate_.resize(static_cast<size_t>(chunk.n * a.gate.rows));
    in.push_back({a.gate, attention_gate_.data(), a.gate.rows, data_or_null(a.gate_bias)});
  }
  products_.matmul(normed_, in);
  if (!a.v.present()) v_ = k_;
  if (h_.qkv_limit > 0.0) {
    for (std::vector<float>* x : {&q_, &k_, &v_}) clamp(static_cast<float>(h_.qkv_limit), x);
  }
}

// Each head of x by its own norm, or all of them by one, as the model has it.
void Forward::normalize_heads(const FloatVector& weight, int64_t n_heads, int64_t head_dim, float* x) const {
  if (weight.empty() && h_.qk_norm != QkNorm::kPerHeadPlain) return;
  const bool whole = h_.qk_norm == QkNorm::kWholeProjection;
  const int64_t n = whole ? n_heads * head_dim : head_dim;
  for (int64_t i = 0; i < (whole ? 1 : n_heads); ++i) {
    backend_.kernels().rms_norm(x + i * n, data_or_null(weight), h_.rms_eps, n, x + i * n);
  }
}

// Turns n_heads heads of a row that lie `stride` apart.
void Forward::turn_heads(int64_t layer, int64_t row, int64_t n_heads, int64_t stride, float* x) const {
  const LayerParameters& p = h_.layer(layer);
  if (!p.has_rope) return;
  const Angles& angles = p.windowed ? angles_windowed_ : angles_;
  const int64_t at = row * angles.rope->n_pairs();
  for (int64_t i = 0; i < n_heads; ++i) {
    angles.rope->apply(angles.cos.data() + at, angles.sin.data() + at, x + i * stride);
  }
}

// What the queries of a row are multiplied with for its position.
float Forward::query_scale(const Chunk& chunk, int64_t layer, int64_t row) const {
  const QueryTemperature& t = h_.temperature;
  if (t.scale == 0.0 || !h_.layer(layer).has_temperature) return 1.0f;
  const double steps = std::floor((static_cast<double>(chunk.position(row)) + t.offset) / t.length);
  return static_cast<float>(std::log(steps + 1.0) * t.scale + 1.0);
}

void Forward::store_keys_values(const Chunk& chunk, int64_t layer, Queries queries) {
  const AttentionWeights& a = weights(layer).attention;
  const LayerParameters& p = h_.layer(layer);
  // Llama 4's plain norm comes with the rotary embedding. Where norm weights are optional, none means no norm.
  const bool has_norm = h_.qk_norm == QkNorm::kPerHeadPlain ? p.has_rope : h_.qk_norm != QkNorm::kNone;
  const auto prepare = [&](float* x, const FloatVector& norm_weight, int64_t row, int64_t n_heads) {
    if (has_norm && !h_.qk_norm_after_rope) normalize_heads(norm_weight, n_heads, p.head_dim_k, x);
    turn_heads(layer, row, n_heads, p.head_dim_k, x);
    if (has_norm && h_.qk_norm_after_rope) normalize_heads(norm_weight, n_heads, p.head_dim_k, x);
  };
  const int64_t n_v = p.n_kv_heads * p.head_dim_v;
  const CacheTypes types = m_.cache_types();
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    float* k = k_.data() + r * a.k.rows;
    float* v = v_.data() + r * n_v;
    prepare(k, a.k_norm, r, p.n_kv_heads);
    if (queries == Queries::kAll) {
      float* q = q_.data() + r * a.q.rows;
      prepare(q, a.q_norm, r, p.n_heads);
      const float scale = query_scale(chunk, layer, r);
      if (scale != 1.0f) {
        for (int64_t i = 0; i < a.q.rows; ++i) q[i] = q[i] * scale;
      }
    }
    const int64_t cell = chunk.cell(r);
    const SequenceState& state = *chunk.row(r).state;
    for (int64_t head = 0; head < p.n_kv_heads; ++head) {
      float* value = v + head * p.head_dim_v;
      if (h_.normalize_values) backend_.kernels().rms_norm(value, nullptr, h_.rms_eps, p.head_dim_v, value);
      write_cache_row(backend_.kernels(), k + head * p.head_dim_k, p.head_dim_k, types.keys,
                      state.key(layer, head, cell));
      write_cache_row(backend_.kernels(), value, p.head_dim_v, types.values, state.value(layer, head, cell));
    }
  });
  for (const Piece& piece : chunk.pieces) {
    const SequenceState& state = *piece.pass.state;
    if (state.device_cells() != nullptr) state.device_cells()->changed(layer, state.cell(piece.begin));
  }
}

// attended_ times sigmoid(gate), element by element.
void Forward::gate_attention(int64_t n, int64_t width) {
  backend_.pool().parallel_for(n, [&](int64_t r) {
    float* gate = attention_gate_.data() + r * width;
    float* y = attended_.row(r);
    for (int64_t i = 0; i < width; ++i) gate[i] = -gate[i];
    backend_.kernels().exp_f32(gate, width, gate);
    for (int64_t i = 0; i < width; ++i) y[i] = y[i] * (1.0f / (1.0f + gate[i]));
  });
}

int64_t Forward::first_seen(int64_t layer, int64_t position) const {
  if (!h_.layer(layer).windowed) return 0;
  switch (h_.window) {
    case Window::kNone: return 0;
    case Window::kSliding: return std::max<int64_t>(0, position - h_.n_window + 1);
    case Window::kChunked: return position / h_.n_window * h_.n_window;
  }
  return 0;
}

// q_ [n][n_heads][head_dim_k] over the cells into attended_ [n][n_heads][head_dim_v].
void Forward::attend(const Chunk& chunk, int64_t layer) {
  const LayerParameters& p = h_.layer(layer);
  const FloatVector& sinks = weights(layer).attention.sinks;
  const int64_t n_q = p.n_heads * p.head_dim_k;
  const int64_t group = p.n_heads / p.n_kv_heads;  // query heads that share a KV head
  const float scale = h_.attention_scale != 0.0 ? static_cast<float>(h_.attention_scale)
                                                : 1.0f / std::sqrt(static_cast<float>(p.head_dim_k));
  attended_.reset(chunk.n, p.n_heads * p.head_dim_v);
  // A task is some rows of one sequence and KV head: they read, and decode, its keys and values together. There are to be
  // two for each thread, for balance; where one row each gives fewer than threads, each takes part of the query heads.
  const int64_t n_threads = backend_.n_threads();
  const int64_t step = std::clamp<int64_t>(chunk.n * p.n_kv_heads / (2 * n_threads), 1, kAttendRows);
  attention_tasks_.clear();
  for (const Piece& piece : chunk.pieces) {
    for (int64_t i = 0; i < piece.n; i += step) {
      attention_tasks_.push_back({piece.at + i, std::min(step, piece.n - i)});
    }
  }
  const auto n_steps = std::ssize(attention_tasks_);
  const int64_t part_heads = heads_of_task(group, n_steps * p.n_kv_heads, n_threads);
  const int64_t n_parts = (group + part_heads - 1) / part_heads;
  backend_.pool().parallel_for(n_steps * p.n_kv_heads * n_parts, [&](int64_t task) {
    const int64_t head = task / (n_steps * n_parts);
    const int64_t part = task / n_steps % n_parts;
    const auto [begin, n_rows] = attention_tasks_[static_cast<size_t>(task % n_steps)];
    const int64_t first_head = head * group + part * part_heads;
    const SequenceState& state = *chunk.row(begin).state;
    const CellRows keys = state.keys(layer, head);
    const CellRows values = h_.is_latent() ? keys : state.values(layer, head);
    const auto scratch = decode_scratch(keys, values, p);
    AttendArgs rows[kAttendRows] = {};
    for (int64_t i = 0; i < n_rows; ++i) {
      AttendArgs& args = rows[i];
      const int64_t r = begin + i;
      const PathCells& path = chunk.path(r);
      args.q = q_.data() + r * n_q + first_head * p.head_dim_k;
      args.q_stride = p.head_dim_k;
      args.n_heads = std::min(part_heads, (head + 1) * group - first_head);
      args.k = keys;
      args.v = values;
      args.scratch = scratch ? scratch[0].x : nullptr;
      args.head_dim_k = p.head_dim_k;
      args.head_dim_v = p.head_dim_v;
      args.first = first_seen(layer, chunk.position(r));
      args.n_prefix = path.n_prefix;
      args.tail = path.tail.data();
      args.n_tail = static_cast<int64_t>(path.tail.size());
      args.scale = scale;
      args.softcap = static_cast<float>(h_.attention_softcap);
      args.sinks = sinks.empty() ? nullptr : sinks.data() + first_head;
      args.out = attended_.row(r) + first_head * p.head_dim_v;
      args.out_stride = p.head_dim_v;
    }
    backend_.kernels().attend(rows, n_rows);
  });
}

}  // namespace expertree
