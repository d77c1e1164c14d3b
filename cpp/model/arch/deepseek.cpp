// deepseek: DeepSeek MoE 16B; plain attention, leading dense layers, shared experts, weights never renormalised.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kDeepSeek = {
    .name = "deepseek",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kConsecutive;
          read_experts(keys, h);
          read_leading_dense(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          read_shared_experts(keys, h->moe.n_ff, h);
          const double scale = keys.float_or("expert_weights_scale", 0.0);
          if (scale != 0.0) h->moe.weights_scale = scale;
        },
};

}  // namespace expertree
