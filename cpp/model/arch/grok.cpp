// grok: Grok 1 and 2; soft-capped scores, norms before and behind each part, GeGLU experts, in Grok 2 a dense part
// beside them.
#include <cmath>

#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kGrok = {
    .name = "grok",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->yarn.beta_fast = keys.float_or("rope.scaling.yarn_beta_fast", 8.0);
          h->yarn.beta_slow = keys.float_or("rope.scaling.yarn_beta_slow", 1.0);
          for (const char* key : {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
            const double value = keys.float_or(key, 1.0);
            if (value != 1.0) keys.refuse_feature(key, std::to_string(value), "factors other than 1");
          }
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
