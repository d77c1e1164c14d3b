// dots1: dots.llm1; sigmoid routing with a selection bias, leading dense layers, shared experts.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kDots1 = {
    .name = "dots1",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          read_experts(keys, h);
          read_leading_dense(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          read_shared_experts(keys, h->moe.n_ff, h);
          h->moe.selection_bias = Presence::kOptional;
          read_weights_rule(keys, h);
          read_gating(keys, nullptr, h);
        },
};

}  // namespace expertree
