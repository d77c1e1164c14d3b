// hunyuan-moe: Hunyuan A13B; q and k normalised after the rotary embedding, a shared expert.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kHunyuanMoe = {
    .name = "hunyuan-moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          h->qk_norm_after_rope = true;
          read_experts(keys, h);
          keys.require_same_int("expert_feed_forward_length");  // files have it; the width used is the other key's
          h->moe.n_ff = h->n_ff;
          h->moe.renormalize = true;
          h->moe.shared = SharedExpert::kPlain;
          h->moe.n_ff_shared = keys.int_or("expert_shared_feed_forward_length", 0, 0);
          if (h->moe.n_ff_shared == 0) h->moe.n_ff_shared = h->n_ff;
        },
};

}  // namespace expertree
