// grok: Grok 1 and 2; soft-capped scores, norms before and behind each part, GeGLU experts, in Grok 2 a dense part
// beside them.
#include <cmath>

#include "cpp/model/arch/architecture.h"

namespace expertree {
namespace {

// The share of YaRN's ramp (negative: as rope.scaling.type says), and what multiplies sin and cos without YaRN, as
// llama.cpp takes them.
void read_yarn_factors(const ArchKeys& keys, HyperParameters* h) {
  const double share = keys.float_or("rope.scaling.yarn_ext_factor", -1.0);
  if (share > 0.0 && share != 1.0) {
    keys.refuse_feature("rope.scaling.yarn_ext_factor", std::to_string(share), "factors other than 0 and 1");
  }
  const bool on = share < 0.0 ? h->yarn.on : share == 1.0;
  h->rope_magnitude = rope_magnitude(keys, on, h->rope_frequency_scale);
  if (!on) h->rope_magnitude *= keys.float_or("rope.scaling.yarn_attn_factor", 1.0);
  h->yarn.on = on;
}

}  // namespace

const Architecture kGrok = {
    .name = "grok",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->yarn.beta_fast = keys.float_or("rope.scaling.yarn_beta_fast", 8.0);
          h->yarn.beta_slow = keys.float_or("rope.scaling.yarn_beta_slow", 1.0);
          read_yarn_factors(keys, h);
          // Defaults are those of Grok 1, whose first files lack the keys.
          h->logit_scale = keys.float_or("logit_scale", 0.5773502691896257);
          h->embedding_scale = keys.float_or("embedding_scale", 78.38367176906169);
          h->attention_scale = keys.float_or("attention.output_scale", 0.08838834764831845);
          h->attention_softcap = keys.float_or("attn_logit_softcapping", 30.0);
          h->logit_softcap = keys.float_or("final_logit_softcapping", 0.0);
          h->post_attention_norm = "attn_output_norm";
          const bool old_name = keys.reader().find_tensor("blk.0.layer_output_norm.weight") != nullptr;
          h->post_feed_forward_norm = old_name ? "layer_output_norm" : "post_ffw_norm";
          h->unit = GatedUnit::kGeGlu;
          read_experts(keys, h);
          h->moe.n_ff = keys.same_int_or("expert_feed_forward_length", 0, 0);
          if (h->moe.n_ff == 0) h->moe.n_ff = h->n_ff;
          h->moe.renormalize = true;
          h->moe.dense_beside = keys.reader().find_tensor("blk.0.ffn_up.weight") != nullptr;
          if (h->moe.dense_beside) h->moe.sum_scale = std::sqrt(2.0) / 2.0;
        },
};

}  // namespace expertree
