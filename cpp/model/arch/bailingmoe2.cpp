// bailingmoe2: Ling 2 and Ring 2; sigmoid routing with groups and a selection bias, leading dense layers, shared experts.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kBailingMoe2 = {
    .name = "bailingmoe2",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          read_experts(keys, h);
          read_leading_dense(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          const int64_t shared_width = keys.int_or("expert_shared_feed_forward_length", 0, 0);
          read_shared_experts(keys, shared_width > 0 ? shared_width : h->moe.n_ff, h);
          h->moe.selection_bias = Presence::kOptional;
          read_weights_rule(keys, h);
          read_gating(keys, nullptr, h);
        },
};

}  // namespace expertree
