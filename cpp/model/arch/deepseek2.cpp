// deepseek2: DeepSeek V2, V3 and R1, their lite forms, and models of the same build (Kimi K2, GLM 4.7 Flash, Mistral
// Large 3); latent attention, leading dense layers, shared experts.
#include <cmath>

#include "cpp/model/arch/architecture.h"

namespace expertree {
namespace {

int64_t vocabulary_size(const ArchKeys& keys) {
  if (keys.has("vocab_size")) return keys.require_int("vocab_size");
  const GgufValue* tokens = keys.reader().find("tokenizer.ggml.tokens");
  const bool is_list = tokens != nullptr && tokens->type == GgufValueType::kArray;
  return is_list ? static_cast<int64_t>(tokens->n_elements) : 0;
}

// Files do not say whether queries are compressed; the size of the model does.
bool is_lite(const HyperParameters& h, int64_t n_vocab) {
  return h.n_layers == 26 || h.n_layers == 27 || (h.n_layers == 48 && n_vocab == 128256);
}

void read_latent(const ArchKeys& keys, bool lite, HyperParameters* h) {
  LatentParameters& p = h->latent;
  p.kv_rank = keys.require_int("attention.kv_lora_rank");
  if (!lite) p.q_rank = keys.require_int("attention.q_lora_rank", 0);
  const int64_t head_dim_k = keys.int_or("attention.key_length_mla", 0, 0);
  p.head_dim_v = keys.int_or("attention.value_length_mla", 0, 0);
  p.split = head_dim_k > 0 && p.head_dim_v > 0;
  if (!p.split) p.head_dim_v = h->head_dim_v;
  const int64_t head_dim_q = p.split ? head_dim_k : h->head_dim_k;
  p.n_nope = head_dim_q - h->n_rot;
  if (p.n_nope < 1) {
    keys.refuse_value("rope.dimension_count", h->n_rot, "less than the head size " + std::to_string(head_dim_q));
  }
  h->head_dim_k = p.kv_rank + h->n_rot;
  h->head_dim_v = p.kv_rank;
  h->n_kv_heads = 1;
  for (LayerParameters& layer : h->layers) {
    layer.n_kv_heads = 1;
    layer.head_dim_k = h->head_dim_k;
    layer.head_dim_v = h->head_dim_v;
  }
}

// YaRN's magnitude goes into the scores' scale instead of sin and cos.
void read_scaling(const ArchKeys& keys, HyperParameters* h) {
  const double log_factor = -std::log(h->rope_frequency_scale);
  const double log_multiplier = keys.float_or("rope.scaling.yarn_log_multiplier", 0.0) / 0.1;
  double magnitude = keys.float_or("rope.scaling.attn_factor", 1.0);
  if (!h->yarn.on) {
    h->rope_magnitude = magnitude;
    magnitude *= 1.0 + 0.1 * log_factor;
  } else {
    if (log_multiplier == 0.0 && log_factor > 0.0) magnitude *= 1.0 + 0.1 * log_factor;
    h->rope_magnitude = magnitude;
  }
  const double scale = magnitude * (1.0 + 0.1 * log_multiplier * log_factor);
  h->attention_scale = scale * scale / std::sqrt(static_cast<double>(h->latent.head_dim_q(h->n_rot)));
}

}  // namespace

const Architecture kDeepSeek2 = {
    .name = "deepseek2",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kConsecutive;
          const int64_t n_vocab = vocabulary_size(keys);
          read_latent(keys, is_lite(*h, n_vocab), h);
          read_scaling(keys, h);
          h->temperature.scale = keys.float_or("attention.temperature_scale", 0.0);
          if (h->temperature.scale != 0.0) {
            h->temperature.length = static_cast<double>(keys.require_int("attention.temperature_length"));
          }
          for (LayerParameters& layer : h->layers) layer.has_temperature = true;
          read_experts(keys, h);
          read_leading_dense(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          read_shared_experts(keys, h->moe.n_ff, h);
          h->moe.selection_bias = Presence::kOptional;
          read_weights_rule(keys, h);
          // Files of V2 and V2.5 lack the key; so do early ones of GLM 4.7 Flash, which has a sigmoid.
          const bool is_glm = (h->n_layers == 47 || h->n_layers == 48) && n_vocab == 154880;
          const Gating fallback = is_glm ? Gating::kSigmoid : Gating::kSoftmax;
          read_gating(keys, &fallback, h);
        },
};

}  // namespace expertree
