// dbrx: DBRX; layer norms without biases; queries, keys and values clamped.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kDbrx = {
    .name = "dbrx",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          h->layer_norm = true;
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qkv_limit = keys.require_float("attention.clamp_kqv");
          if (!(h->qkv_limit >= 0.0)) {
            keys.refuse_value("attention.clamp_kqv", std::to_string(h->qkv_limit), "a limit, or 0 for none");
          }
          h->ffn_norm = "attn_output_norm";
          read_experts(keys, h);
          h->moe.n_ff = h->n_ff;
          h->moe.renormalize = true;
        },
};

}  // namespace expertree
