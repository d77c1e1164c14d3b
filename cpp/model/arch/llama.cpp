// llama: Llama 1-3, SmolLM2 and their kin; Mixtral when it has experts.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kLlama = {
    .name = "llama",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          if (has_long_factors(keys)) h->rope_factors = RopeFactors::kLongShort;
          read_common(keys, h);
          h->rope_style = RopeStyle::kConsecutive;
          if (keys.int_or("expert_count", 0, 0) > 0) {  // Mixtral
            read_experts(keys, h);
            h->moe.n_ff = h->n_ff;
            h->moe.renormalize = true;
          }
        },
};

}  // namespace expertree
