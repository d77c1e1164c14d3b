// granitemoe: Granite 3 MoE; scales of embedding, residual stream, attention and logits; a shared expert in some.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kGraniteMoe = {
    .name = "granitemoe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          if (has_long_factors(keys)) h->rope_factors = RopeFactors::kLongShort;
          read_common(keys, h);
          h->rope_style = RopeStyle::kConsecutive;
          read_scales(keys, h);
          if (keys.int_or("expert_count", 0, 0) == 0) return;
          read_experts(keys, h);
          h->moe.n_ff = h->n_ff;
          h->moe.renormalize = true;
          h->moe.n_ff_shared = keys.int_or("expert_shared_feed_forward_length", 0, 0);
          if (h->moe.n_ff_shared > 0) h->moe.shared = SharedExpert::kPlain;
        },
};

}  // namespace expertree
