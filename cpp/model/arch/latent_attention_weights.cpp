// Latent attention's tensors. A head's query is carried over to the compressed past by the transpose of its key matrix,
// which newer files hold as attn_k_b; from older ones, with keys and values in attn_kv_b, it is made here, in F32.
#include <string>

#include "cpp/base/memory.h"
#include "cpp/model/arch/layer_weights.h"
#include "cpp/tensor/dequantize.h"

namespace expertree {
namespace {

// Head by head the first n_nope rows of kv_up, turned: [n_heads * kv_rank][n_nope].
FloatVector transposed_keys(const LatentParameters& p, int64_t n_heads, const WeightMatrix& kv_up) {
  const int64_t floats = n_heads * p.kv_rank * p.n_nope;
  require_memory(static_cast<uint64_t>(floats) * sizeof(float), "the key matrices of latent attention");
  FloatVector out(static_cast<size_t>(floats + kOverreadFloats));
  std::vector<float> row(static_cast<size_t>(p.kv_rank));
  for (int64_t head = 0; head < n_heads; ++head) {
    for (int64_t i = 0; i < p.n_nope; ++i) {
      const int64_t source = head * (p.n_nope + p.head_dim_v) + i;
      dequantize_row(kv_up.dtype, kv_up.data + source * kv_up.row_bytes, p.kv_rank, row.data());
      for (int64_t j = 0; j < p.kv_rank; ++j) {
        out[static_cast<size_t>((head * p.kv_rank + j) * p.n_nope + i)] = row[static_cast<size_t>(j)] * kv_up.scale;
      }
    }
  }
  return out;
}

}  // namespace

void plan_latent_attention(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                           AttentionWeights* w) {
  const LatentParameters& p = h.latent;
  const int64_t n_heads = h.layer(layer).n_heads;
  const int64_t n_q = n_heads * p.head_dim_q(h.n_rot);
  LatentWeights* latent = &w->latent;
  if (p.q_rank > 0) {
    plan->matrix(block + "attn_q_a.weight", h.n_embd, p.q_rank, &latent->q_down);
    plan->vector(block + "attn_q_a_norm.weight", p.q_rank, &latent->q_norm);
    plan->matrix(block + "attn_q_b.weight", p.q_rank, n_q, &w->q);
  } else {
    plan->matrix(block + "attn_q.weight", h.n_embd, n_q, &w->q);
  }
  plan->matrix(block + "attn_kv_a_mqa.weight", h.n_embd, p.kv_rank + h.n_rot, &latent->kv_down);
  plan->vector(block + "attn_kv_a_norm.weight", p.kv_rank, &latent->kv_norm);
  if (p.split) {
    plan->matrix_stack(block + "attn_k_b.weight", p.n_nope, p.kv_rank, n_heads, &latent->k_up);
    plan->matrix_stack(block + "attn_v_b.weight", p.kv_rank, p.head_dim_v, n_heads, &latent->v_up_all);
  } else {
    plan->matrix(block + "attn_kv_b.weight", p.kv_rank, n_heads * (p.n_nope + p.head_dim_v), &latent->kv_up);
  }
  plan->matrix(block + "attn_output.weight", n_heads * p.head_dim_v, h.n_embd, &w->output);
}

void finish_latent_attention(const HyperParameters& h, int64_t layer, AttentionWeights* w,
                             std::vector<FloatVector>* computed) {
  const LatentParameters& p = h.latent;
  const int64_t n_heads = h.layer(layer).n_heads;
  LatentWeights* latent = &w->latent;
  for (int64_t head = 0; head < n_heads; ++head) {
    latent->v_up.push_back(p.split
                               ? latent->v_up_all.rows_from(head * p.head_dim_v, p.head_dim_v)
                               : latent->kv_up.rows_from(head * (p.n_nope + p.head_dim_v) + p.n_nope, p.head_dim_v));
  }
  if (p.split) return;
  computed->push_back(transposed_keys(p, n_heads, latent->kv_up));
  latent->k_up = {DType::kF32, reinterpret_cast<const std::byte*>(computed->back().data()), n_heads * p.kv_rank,
                  p.n_nope, p.n_nope * static_cast<int64_t>(sizeof(float))};
}

}  // namespace expertree
