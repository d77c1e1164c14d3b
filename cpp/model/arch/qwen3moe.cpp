// qwen3moe: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder; chosen weights always renormalised, whatever the file says.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kQwen3Moe = {
    .name = "qwen3moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          read_experts(keys, h);
          h->moe.n_ff = keys.same_int_or("expert_feed_forward_length", h->n_ff / h->moe.n_used);
          h->moe.renormalize = true;
        },
};

}  // namespace expertree
