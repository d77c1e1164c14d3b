// GGUF tensor names to roles: with the files beside it the one place that knows them, besides the data sheets.
#include <functional>
#include <string>

#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/layer_weights.h"
#include "cpp/model/arch/recurrent_weights.h"
#include "cpp/model/arch/tensor_plan.h"

namespace expertree {
namespace {

// A norm's weight, and its bias where the model's norms have one.
void plan_norm(TensorPlan* plan, const std::string& stem, const HyperParameters& h, FloatVector* weight,
               FloatVector* bias) {
  plan->vector(stem + ".weight", h.n_embd, weight);
  if (h.norm_biases) plan->vector(stem + ".bias", h.n_embd, bias);
}

// Factors of the pairs that turn; files may have them for all pairs of a head.
void plan_rope_factors(TensorPlan* plan, const HyperParameters& h, ModelWeights* w) {
  const auto optional = [&](const char* name, FloatVector* out) {
    const GgufTensor* tensor = plan->take(name);
    if (tensor == nullptr) return false;
    const int64_t n_pairs = tensor->ne[0] == h.head_dim_k / 2 ? h.head_dim_k / 2 : h.n_rot / 2;
    plan->vector(name, n_pairs, out);
    return true;
  };
  if (optional("rope_freqs.weight", &w->rope_factors) || h.rope_factors != RopeFactors::kLongShort) return;
  if (optional("rope_factors_short.weight", &w->rope_factors)) {
    plan->require("rope_factors_long.weight");
    optional("rope_factors_long.weight", &w->rope_factors_long);
  }
}

}  // namespace

void plan_layer(TensorPlan* plan, int64_t number, const HyperParameters& h, int64_t i, ExpertIndex* experts,
                LayerWeights* w) {
  const std::string block = "blk." + std::to_string(number) + ".";
  const LayerParameters& layer = h.layer(i);
  plan_norm(plan, block + "attn_norm", h, &w->attn_norm, &w->attn_norm_bias);
  if (layer.mixer != Mixer::kAttention) {
    plan_recurrent(plan, block, h, i, w);
  } else if (h.is_latent()) {
    plan_latent_attention(plan, block, h, i, &w->attention);
  } else {
    plan_attention(plan, block, h, i, &w->attention);
  }
  if (h.post_attention_norm != nullptr) {
    plan->vector(block + h.post_attention_norm + ".weight", h.n_embd, &w->post_attention_norm);
  }
  plan_norm(plan, block + h.ffn_norm, h, &w->ffn_norm, &w->ffn_norm_bias);
  if (layer.has_experts) plan_mixture(plan, block, h, i, experts, &w->moe);
  if (!layer.has_experts || h.moe.dense_beside) {
    plan_feed_forward(plan, block, "", h.n_embd, layer.n_ff, &w->dense);
  }
  if (h.post_feed_forward_norm != nullptr) {
    plan->vector(block + h.post_feed_forward_norm + ".weight", h.n_embd, &w->post_feed_forward_norm);
  }
  if (h.layer_scales) plan->optional_vector(block + "layer_output_scale.weight", 1, &w->output_scale);
}

void finish_layer(const HyperParameters& h, int64_t i, LayerWeights* w, std::vector<FloatVector>* computed) {
  if (h.layer(i).mixer != Mixer::kAttention) {
    finish_recurrent(h, i, w);
  } else if (h.is_latent()) {
    finish_latent_attention(h, i, &w->attention, computed);
  } else {
    finish_attention(h, i, &w->attention);
  }
  finish_mixture(h, &w->moe);
}

ModelWeights load_weights(const GgufReader& reader, const HyperParameters& h, PageBuffer* arena,
                          const std::function<void(uint64_t, uint64_t)>& progress) {
  TensorPlan plan(reader);
  ModelWeights w;
  plan.matrix("token_embd.weight", h.n_embd, h.n_vocab, &w.token_embd);
  plan_norm(&plan, h.output_norm, h, &w.output_norm, &w.output_norm_bias);
  const bool tied = !plan.optional_matrix("output.weight", h.n_embd, h.n_vocab, &w.output);
  plan.vector_if(h.norm_biases ? Presence::kRequired : Presence::kOptional, "output.bias", h.n_vocab, &w.output_bias);
  plan_rope_factors(&plan, h, &w);
  w.layers.resize(static_cast<size_t>(h.n_layers));
  for (int64_t i = 0; i < h.n_layers; ++i) {
    plan_layer(&plan, i, h, i, &w.experts, &w.layers[static_cast<size_t>(i)]);
  }
  // Blocks that predict further tokens are a drafter's, which loads them when it is asked for.
  for (int64_t i = 0; i < h.n_nextn_layers; ++i) plan.leave("blk." + std::to_string(h.n_layers + i) + ".");
  plan.refuse_unused();
  require_memory(plan.bytes(), "loading the weights of " + reader.paths()[0]);
  plan.load(arena, progress);
  for (int64_t i = 0; i < h.n_layers; ++i) {
    finish_layer(h, i, &w.layers[static_cast<size_t>(i)], &w.computed);
  }
  if (tied) w.output = w.token_embd;
  return w;
}

}  // namespace expertree
