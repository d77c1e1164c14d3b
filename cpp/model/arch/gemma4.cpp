// gemma4: Gemma 4 in the forms of 26B-A4B and 31B; windowed layers with heads of their own size, values that are the
// normalised key projection on some layers, a dense part beside the experts. The forms with per-layer embeddings and
// shared keys (E2B, E4B) are refused.
#include <cmath>

#include "cpp/model/arch/architecture.h"

namespace expertree {
namespace {

void refuse_small_forms(const ArchKeys& keys) {
  for (const char* key : {"embedding_length_per_layer_input", "attention.shared_kv_layers"}) {
    const int64_t value = keys.int_or(key, 0, 0);
    if (value != 0) keys.refuse_feature(key, std::to_string(value), "per-layer embeddings and shared keys (E2B, E4B)");
  }
}

void read_windowed_heads(const ArchKeys& keys, HyperParameters* h) {
  const int64_t key_length = keys.require_int("attention.key_length_swa");
  const int64_t value_length = keys.require_int("attention.value_length_swa");
  if (h->head_dim_k != h->head_dim_v || key_length != value_length) {
    keys.refuse_value("attention.value_length", h->head_dim_v, "the same as the key length");
  }
  h->n_rot_windowed = keys.int_or("rope.dimension_count_swa", h->n_rot);
  for (LayerParameters& layer : h->layers) {
    if (layer.windowed) layer.head_dim_k = layer.head_dim_v = key_length;
  }
}

// Layers have experts where they have a router.
void read_mixture(const ArchKeys& keys, HyperParameters* h) {
  if (keys.int_or("expert_count", 0, 0) == 0) return;
  read_experts(keys, h);
  for (int64_t i = 0; i < h->n_layers; ++i) {
    const std::string router = "blk." + std::to_string(i) + ".ffn_gate_inp.weight";
    h->layers[static_cast<size_t>(i)].has_experts = keys.reader().find_tensor(router) != nullptr;
  }
  h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
  h->moe.renormalize = true;
  h->moe.router_input = RouterInput::kOwnNorm;
  h->moe.dense_beside = true;
}

}  // namespace

const Architecture kGemma4 = {
    .name = "gemma4",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          refuse_small_forms(keys);
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->window = Window::kSliding;
          h->n_window = keys.require_int("attention.sliding_window");
          read_window_layers(keys, -1, false, h);
          read_windowed_rope(keys, 10000.0, WindowedScale::kOne, h);
          h->rope_factors_windowed = false;
          read_windowed_heads(keys, h);
          h->qk_norm = QkNorm::kPerHead;
          h->normalize_values = true;
          h->values_may_be_keys = true;
          h->attention_scale = 1.0;
          h->post_attention_norm = "post_attention_norm";
          h->post_feed_forward_norm = "post_ffw_norm";
          h->layer_scales = true;
          h->unit = GatedUnit::kGeGlu;
          h->embedding_scale = std::sqrt(static_cast<double>(h->n_embd));
          h->logit_softcap = keys.float_or("final_logit_softcapping", 30.0);
          read_mixture(keys, h);
        },
};

}  // namespace expertree
