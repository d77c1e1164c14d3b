// Latent attention of a chunk in its compressed form: what is kept of a position is [normed compressed vector, turned
// rotary key], one KV head for all queries. A head's query is carried over to it by the head's key matrix; its values are
// the compressed vectors themselves, and the head's value matrix is applied to their weighted sum.
#include <cstring>
#include <numeric>

#include "cpp/model/forward.h"

namespace expertree {

void Forward::latent_attention(const Chunk& chunk, int64_t layer) {
  const int64_t n_heads = h_.layer(layer).n_heads;
  head_rows_.resize(static_cast<size_t>(n_heads * chunk.n));
  for (int64_t head = 0; head < n_heads; ++head) {
    for (int64_t r = 0; r < chunk.n; ++r) {
      head_rows_[static_cast<size_t>(head * chunk.n + r)] = static_cast<int32_t>(r * n_heads + head);
    }
  }
  project_latent(chunk, layer);
  store_latent(chunk, layer);
  attend(chunk, layer);
  leave_latent(chunk, layer);
}

// Queries of full size into up_ [n][n_heads][n_nope + n_rot], compressed vectors into k_ [n][kv_rank + n_rot].
void Forward::project_latent(const Chunk& chunk, int64_t layer) {
  const AttentionWeights& a = weights(layer).attention;
  const LatentWeights& w = a.latent;
  up_.resize(static_cast<size_t>(chunk.n * a.q.rows));
  k_.resize(static_cast<size_t>(chunk.n * w.kv_down.rows));
  const CpuBackend::Product kv{w.kv_down, k_.data(), w.kv_down.rows};
  const CpuBackend::Product q{a.q, up_.data(), a.q.rows};
  if (!w.q_down.present()) {
    const CpuBackend::Product in[] = {q, kv};
    products_.matmul(normed_, in);
    return;
  }
  gate_.resize(static_cast<size_t>(chunk.n * w.q_down.rows));
  const CpuBackend::Product in[] = {{w.q_down, gate_.data(), w.q_down.rows}, kv};
  products_.matmul(normed_, in);
  compressed_.reset(chunk.n, w.q_down.rows);
  backend_.rms_norm(gate_.data(), w.q_norm.data(), h_.rms_eps, &compressed_);
  const CpuBackend::Product up[] = {q};
  products_.matmul(compressed_, up);
}

// Fills in the cells, and q_ [n][n_heads][kv_rank + n_rot].
void Forward::store_latent(const Chunk& chunk, int64_t layer) {
  const LatentParameters& p = h_.latent;
  const LatentWeights& w = weights(layer).attention.latent;
  const int64_t n_heads = h_.layer(layer).n_heads;
  const int64_t width = p.kv_rank + h_.n_rot;
  const int64_t head_dim = p.head_dim_q(h_.n_rot);
  q_.resize(static_cast<size_t>(chunk.n * n_heads * width));
  compressed_.reset(chunk.n * n_heads, p.n_nope);
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    float* key = k_.data() + r * width;
    backend_.kernels().rms_norm(key, w.kv_norm.data(), h_.rms_eps, p.kv_rank, key);
    turn_heads(layer, r, 1, width, key + p.kv_rank);
    SequenceState& state = *chunk.row(r).state;
    write_cache_row(backend_.kernels(), key, width, m_.cache_types().keys, state.key(layer, 0, chunk.cell(r)));
    float* query = up_.data() + r * n_heads * head_dim;
    turn_heads(layer, r, n_heads, head_dim, query + p.n_nope);
    const float scale = query_scale(chunk, layer, r);
    for (int64_t head = 0; head < n_heads; ++head, query += head_dim) {
      if (scale != 1.0f) {
        for (int64_t i = 0; i < head_dim; ++i) query[i] = query[i] * scale;
      }
      const int64_t row = r * n_heads + head;
      std::memcpy(compressed_.row(row), query, static_cast<size_t>(p.n_nope) * sizeof(float));
      std::memcpy(q_.data() + row * width + p.kv_rank, query + p.n_nope, static_cast<size_t>(h_.n_rot) * sizeof(float));
    }
  });
  std::vector<CpuBackend::Product> carry;
  for (int64_t head = 0; head < n_heads; ++head) {
    const int32_t* rows = head_rows_.data() + head * chunk.n;
    carry.push_back({w.k_up.rows_from(head * p.kv_rank, p.kv_rank), q_.data(), width, nullptr, rows, rows, chunk.n});
  }
  backend_.matmul(compressed_, carry);
}

// Weighted sums of compressed vectors, in attended_ [n][n_heads][kv_rank], to values [n][n_heads][head_dim_v] there.
void Forward::leave_latent(const Chunk& chunk, int64_t layer) {
  const LatentParameters& p = h_.latent;
  const LatentWeights& w = weights(layer).attention.latent;
  const int64_t n_heads = h_.layer(layer).n_heads;
  latent_values_.reset(chunk.n * n_heads, p.kv_rank);
  std::memcpy(latent_values_.data(), attended_.data(),
              static_cast<size_t>(chunk.n * n_heads * p.kv_rank) * sizeof(float));
  attended_.reset(chunk.n, n_heads * p.head_dim_v);
  std::vector<CpuBackend::Product> leave;
  for (int64_t head = 0; head < n_heads; ++head) {
    const int32_t* rows = head_rows_.data() + head * chunk.n;
    leave.push_back({w.v_up[static_cast<size_t>(head)], attended_.data(), p.head_dim_v, nullptr, rows, rows, chunk.n});
  }
  backend_.matmul(latent_values_, leave);
}

}  // namespace expertree
