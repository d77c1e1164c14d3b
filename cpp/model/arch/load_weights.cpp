// GGUF tensor names to roles: the one place that knows them, besides the data sheets.
#include <functional>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/layer_weights.h"
#include "cpp/model/arch/recurrent_weights.h"
#include "cpp/model/arch/tensor_plan.h"

namespace expertree {
namespace {

void plan_attention(TensorPlan* plan, const std::string& block, const HyperParameters& h, AttentionWeights* w) {
  const int64_t n_q = h.n_heads * h.head_dim_k * (h.gated_attention ? 2 : 1);
  const int64_t n_k = h.n_kv_heads * h.head_dim_k;
  const int64_t n_v = h.n_kv_heads * h.head_dim_v;
  plan->matrix(block + "attn_q.weight", h.n_embd, n_q, &w->q);
  plan->matrix(block + "attn_k.weight", h.n_embd, n_k, &w->k);
  plan->matrix(block + "attn_v.weight", h.n_embd, n_v, &w->v);
  plan->matrix(block + "attn_output.weight", h.n_heads * h.head_dim_v, h.n_embd, &w->output);
  plan->optional_vector(block + "attn_q.bias", n_q, &w->q_bias);
  plan->optional_vector(block + "attn_k.bias", n_k, &w->k_bias);
  plan->optional_vector(block + "attn_v.bias", n_v, &w->v_bias);
  plan->optional_vector(block + "attn_output.bias", h.n_embd, &w->output_bias);
  if (h.qk_norm != QkNorm::kNone) {
    const bool per_head = h.qk_norm == QkNorm::kPerHead;
    plan->vector(block + "attn_q_norm.weight", per_head ? h.head_dim_k : n_q, &w->q_norm);
    plan->vector(block + "attn_k_norm.weight", per_head ? h.head_dim_k : n_k, &w->k_norm);
  }
}

void plan_feed_forward(TensorPlan* plan, const std::string& block, const char* suffix, int64_t n_embd, int64_t n_ff,
                       FeedForwardWeights* w) {
  plan->matrix(block + "ffn_gate" + suffix + ".weight", n_embd, n_ff, &w->gate);
  plan->matrix(block + "ffn_up" + suffix + ".weight", n_embd, n_ff, &w->up);
  plan->matrix(block + "ffn_down" + suffix + ".weight", n_ff, n_embd, &w->down);
}

// One merged tensor [k, rows, n_experts], or in old files one tensor [k, rows] per expert.
ExpertLayer::Projection plan_projection(TensorPlan* plan, const std::string& block, const char* name, int64_t k,
                                        int64_t rows, int64_t n_experts) {
  const std::string stem = block + name;
  ExpertLayer::Projection projection;
  projection.rows = rows;
  projection.k = k;
  const GgufTensor* merged = plan->take(stem + "_exps.weight");
  if (merged != nullptr) {
    plan->check(*merged, {k, rows, n_experts});
    projection.dtype = static_cast<DType>(merged->gguf_type);
    const uint64_t size = merged->size_bytes / static_cast<uint64_t>(n_experts);
    for (int64_t e = 0; e < n_experts; ++e) {
      projection.experts.push_back({plan->index_of(merged), size * static_cast<uint64_t>(e), size});
    }
    return projection;
  }
  if (plan->take(stem + ".0.weight") == nullptr) plan->require(stem + "_exps.weight");  // says what is missing
  for (int64_t e = 0; e < n_experts; ++e) {
    const GgufTensor& tensor = plan->require(stem + "." + std::to_string(e) + ".weight");
    plan->check(tensor, {k, rows});
    const auto dtype = static_cast<DType>(tensor.gguf_type);
    if (e > 0 && dtype != projection.dtype) {
      throw Error(ErrorCode::kUnsupported, "tensor '" + tensor.name + "' is stored as " +
                                               gguf_type_name(tensor.gguf_type) + " and that of expert 0 as " +
                                               dtype_info(projection.dtype).name +
                                               "; all experts of a layer must have one format per projection");
    }
    projection.dtype = dtype;
    projection.experts.push_back({plan->index_of(&tensor), 0, tensor.size_bytes});
  }
  return projection;
}

void plan_moe(TensorPlan* plan, const std::string& block, int64_t layer, const HyperParameters& h, ExpertIndex* index,
              MoeWeights* w) {
  const MoeParameters& moe = h.moe;
  plan->matrix(block + "ffn_gate_inp.weight", h.n_embd, moe.n_experts, &w->router);
  ExpertLayer experts;
  experts.layer = static_cast<int32_t>(layer);
  experts.projections[kGate] = plan_projection(plan, block, "ffn_gate", h.n_embd, moe.n_ff, moe.n_experts);
  experts.projections[kUp] = plan_projection(plan, block, "ffn_up", h.n_embd, moe.n_ff, moe.n_experts);
  experts.projections[kDown] = plan_projection(plan, block, "ffn_down", moe.n_ff, h.n_embd, moe.n_experts);
  w->moe_layer = static_cast<int64_t>(index->size());
  index->push_back(std::move(experts));
  if (moe.shared == SharedExpert::kSigmoidGate) {
    plan_feed_forward(plan, block, "_shexp", h.n_embd, moe.n_ff_shared, &w->shared);
    plan->matrix(block + "ffn_gate_inp_shexp.weight", h.n_embd, 1, &w->shared_gate);
  }
}

}  // namespace

void plan_layer(TensorPlan* plan, int64_t number, const HyperParameters& h, int64_t i, ExpertIndex* experts,
                LayerWeights* layer) {
  const std::string block = "blk." + std::to_string(number) + ".";
  plan->vector(block + "attn_norm.weight", h.n_embd, &layer->attn_norm);
  switch (h.mixer(i)) {
    case Mixer::kAttention: plan_attention(plan, block, h, &layer->attention); break;
    case Mixer::kDeltaNet: plan_delta_net(plan, block, h, &layer->delta_net); break;
    case Mixer::kShortConv: plan_short_conv(plan, block, h, &layer->short_conv); break;
  }
  const char* ffn_norm = h.ffn_norm_after_attention ? "post_attention_norm.weight" : "ffn_norm.weight";
  plan->vector(block + ffn_norm, h.n_embd, &layer->ffn_norm);
  if (h.is_moe()) {
    plan_moe(plan, block, i, h, experts, &layer->moe);
  } else {
    plan_feed_forward(plan, block, "", h.n_embd, h.n_ff, &layer->dense);
  }
}

ModelWeights load_weights(const GgufReader& reader, const HyperParameters& h, PageBuffer* arena,
                          const std::function<void(uint64_t, uint64_t)>& progress) {
  TensorPlan plan(reader);
  ModelWeights w;
  plan.matrix("token_embd.weight", h.n_embd, h.n_vocab, &w.token_embd);
  plan.vector("output_norm.weight", h.n_embd, &w.output_norm);
  const bool tied = !plan.optional_matrix("output.weight", h.n_embd, h.n_vocab, &w.output);
  plan.optional_vector("rope_freqs.weight", h.n_rot / 2, &w.rope_factors);
  w.layers.resize(static_cast<size_t>(h.n_layers));
  for (int64_t i = 0; i < h.n_layers; ++i) {
    plan_layer(&plan, i, h, i, &w.experts, &w.layers[static_cast<size_t>(i)]);
  }
  // Blocks that predict further tokens are a drafter's, which loads them when it is asked for.
  for (int64_t i = 0; i < h.n_nextn_layers; ++i) plan.leave("blk." + std::to_string(h.n_layers + i) + ".");
  plan.refuse_unused();
  require_memory(plan.bytes(), "loading the weights of " + reader.paths()[0]);
  plan.load(arena, progress);
  for (size_t i = 0; i < w.layers.size(); ++i) finish_recurrent_layer(h, static_cast<int64_t>(i), &w.layers[i]);
  if (tied) w.output = w.token_embd;
  return w;
}

}  // namespace expertree
