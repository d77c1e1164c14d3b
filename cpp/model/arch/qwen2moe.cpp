// qwen2moe: Qwen1.5-MoE, Qwen2-57B-A14B; chosen weights as they are, a shared expert behind a sigmoid.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kQwen2Moe = {
    .name = "qwen2moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          read_experts(keys, h);
          h->moe.n_ff = keys.same_int_or("expert_feed_forward_length", h->n_ff / h->moe.n_used);
          h->moe.renormalize = false;
          h->moe.shared = SharedExpert::kSigmoidGate;
          h->moe.n_ff_shared = keys.int_or("expert_shared_feed_forward_length", h->n_ff);
        },
};

}  // namespace expertree
