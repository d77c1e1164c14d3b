#include "cpp/model/scratch_size.h"

#include <algorithm>

#include "cpp/model/forward.h"

namespace expertree {
namespace {

constexpr int64_t kFloat = sizeof(float);
// An element of Activations: float, and int8 forms with their scales (1/32 and 1/256 float) and sums (1/16 int16).
constexpr double kActivation = 4.0 + (1.0 + 4.0 / 32 + 2.0 / 16) + (1.0 + 4.0 / 256 + 2.0 / 16);
constexpr int64_t kTreeRows = 64;

// Elements of one row, by what holds them (Forward's members).
struct RowWidths {
  int64_t floats = 0;
  int64_t activations = 0;
};

void add_attention(const HyperParameters& h, RowWidths* row) {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t values = 0;
  int64_t attended = 0;
  for (const LayerParameters& layer : h.layers) {
    queries = std::max(queries, layer.n_heads * layer.head_dim_k);
    keys = std::max(keys, layer.n_kv_heads * layer.head_dim_k);
    values = std::max(values, layer.n_kv_heads * layer.head_dim_v);
    attended = std::max(attended, layer.n_heads * layer.head_dim_v);
  }
  if (h.is_latent()) {
    const LatentParameters& latent = h.latent;
    queries = h.n_heads * (latent.kv_rank + h.n_rot);
    attended = h.n_heads * latent.head_dim_v;
    row->floats += latent.q_rank + h.n_heads * latent.head_dim_q(h.n_rot);
    row->activations += std::max(latent.q_rank, h.n_heads * latent.n_nope) + h.n_heads * latent.kv_rank;
  }
  row->floats += queries + keys + values + 2 * h.n_rot + (h.gated_attention ? attended : 0);
  row->activations += attended;
}

void add_feed_forward(const HyperParameters& h, RowWidths* row) {
  int64_t hidden = 0;
  for (const LayerParameters& layer : h.layers) hidden = std::max(hidden, layer.n_ff);
  const MoeParameters& moe = h.moe;
  if (h.is_moe()) {
    hidden = std::max({hidden, moe.n_used * moe.n_ff, moe.n_ff_shared});
    row->floats += moe.n_used * h.n_embd + moe.n_experts + 6 * moe.n_used;
    const bool own_input = moe.router_input != RouterInput::kNormed || h.moe.dense_beside;
    row->activations += moe.weighs_input ? moe.n_used * h.n_embd : own_input ? 2 * h.n_embd : 0;
  }
  row->floats += 2 * hidden;
  row->activations += hidden;
}

void add_recurrent(const HyperParameters& h, RowWidths* row) {
  const RecurrentParameters& r = h.recurrent;
  if (!h.is_recurrent()) return;
  row->floats += 2 * r.n_channels + 2 * r.n_values() + 3 * h.n_embd + 4 * r.n_value_heads;
  row->activations += r.n_values();
}

}  // namespace

uint64_t scratch_bytes(const HyperParameters& h, int64_t n_ctx) {
  RowWidths row{2 * h.n_embd, h.n_embd};  // residual and output; normed
  add_attention(h, &row);
  add_feed_forward(h, &row);
  add_recurrent(h, &row);
  const double chunk = static_cast<double>(row.floats * kFloat) + static_cast<double>(row.activations) * kActivation;
  const int64_t n_rows = std::min(Forward::kChunkRows, n_ctx);
  return static_cast<uint64_t>(chunk * static_cast<double>(n_rows)) +
         static_cast<uint64_t>(std::min(kTreeRows, n_ctx) * h.n_vocab * kFloat);
}

}  // namespace expertree
