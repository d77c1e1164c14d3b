// Attention's tensors: three projections, or all in one; norms, biases, sinks.
#include <vector>

#include "cpp/model/arch/layer_weights.h"
#include "cpp/model/arch/row_order.h"

namespace expertree {
namespace {

struct Widths {
  int64_t q, k, v;
  int64_t sum() const { return q + k + v; }
};

Widths widths_of(const HyperParameters& h, const LayerParameters& layer) {
  const int64_t n_q = layer.n_heads * (layer.head_dim_k + (h.gated_attention ? layer.head_dim_v : 0));
  return {n_q, layer.n_kv_heads * layer.head_dim_k, layer.n_kv_heads * layer.head_dim_v};
}

// Cuts [q, k, v] in one.
void split_qkv(const Widths& n, AttentionWeights* w) {
  w->q = w->qkv.rows_from(0, n.q);
  w->k = w->qkv.rows_from(n.q, n.k);
  w->v = w->qkv.rows_from(n.q + n.k, n.v);
  if (std::ssize(w->q_bias) != n.sum()) return;
  const FloatVector all = std::move(w->q_bias);
  w->q_bias.assign(all.begin(), all.begin() + n.q);
  w->k_bias.assign(all.begin() + n.q, all.begin() + n.q + n.k);
  w->v_bias.assign(all.begin() + n.q + n.k, all.end());
}

// Each head's query and gate: to all queries, then all gates.
void split_gate(const LayerParameters& layer, AttentionWeights* w) {
  const int64_t stride = layer.head_dim_k + layer.head_dim_v;
  const int64_t n_q = layer.n_heads * layer.head_dim_k;
  std::vector<int64_t> order;
  const auto add = [&](int64_t first, int64_t size) {
    for (int64_t head = 0; head < layer.n_heads; ++head) {
      for (int64_t i = 0; i < size; ++i) order.push_back(head * stride + first + i);
    }
  };
  add(0, layer.head_dim_k);
  add(layer.head_dim_k, layer.head_dim_v);
  const WeightMatrix both = w->q;
  reorder_rows(both, order);
  w->q = both.rows_from(0, n_q);
  w->gate = both.rows_from(n_q, both.rows - n_q);
  if (w->q_bias.empty()) return;
  FloatVector sorted;
  for (const int64_t i : order) sorted.push_back(w->q_bias[static_cast<size_t>(i)]);
  w->q_bias.assign(sorted.begin(), sorted.begin() + n_q);
  w->gate_bias.assign(sorted.begin() + n_q, sorted.end());
}

void plan_biases(TensorPlan* plan, const std::string& block, const Widths& n, AttentionWeights* w) {
  plan->optional_vector(block + "attn_q.bias", n.q, &w->q_bias);
  plan->optional_vector(block + "attn_k.bias", n.k, &w->k_bias);
  plan->optional_vector(block + "attn_v.bias", n.v, &w->v_bias);
}

}  // namespace

void plan_attention(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                    AttentionWeights* w) {
  const LayerParameters& p = h.layer(layer);
  const Widths n = widths_of(h, p);
  if (plan->optional_matrix(block + "attn_qkv.weight", h.n_embd, n.sum(), &w->qkv)) {
    // All three biases in one, for finish_attention to cut.
    if (!plan->optional_vector(block + "attn_qkv.bias", n.sum(), &w->q_bias)) plan_biases(plan, block, n, w);
  } else {
    plan->matrix(block + "attn_q.weight", h.n_embd, n.q, &w->q);
    plan->matrix(block + "attn_k.weight", h.n_embd, n.k, &w->k);
    if (!h.values_may_be_keys || plan->has(block + "attn_v.weight")) {
      plan->matrix(block + "attn_v.weight", h.n_embd, n.v, &w->v);
    }
    plan_biases(plan, block, n, w);
  }
  plan->matrix(block + "attn_output.weight", p.n_heads * p.head_dim_v, h.n_embd, &w->output);
  if (h.ignores_output_bias) {
    plan->take(block + "attn_output.bias");
  } else {
    plan->optional_vector(block + "attn_output.bias", h.n_embd, &w->output_bias);
  }
  plan->vector_if(h.attention_sinks, block + "attn_sinks.weight", p.n_heads, &w->sinks);
  if (h.qk_norm == QkNorm::kPerHead || h.qk_norm == QkNorm::kWholeProjection) {
    const bool whole = h.qk_norm == QkNorm::kWholeProjection;
    plan->vector_if(h.qk_norm_weights, block + "attn_q_norm.weight", whole ? n.q : p.head_dim_k, &w->q_norm);
    plan->vector_if(h.qk_norm_weights, block + "attn_k_norm.weight", whole ? n.k : p.head_dim_k, &w->k_norm);
  }
}

void finish_attention(const HyperParameters& h, int64_t layer, AttentionWeights* w) {
  const LayerParameters& p = h.layer(layer);
  if (w->qkv.present()) split_qkv(widths_of(h, p), w);
  if (h.gated_attention) split_gate(p, w);
}

}  // namespace expertree
