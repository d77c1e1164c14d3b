// olmoe: OLMoE-1B-7B; q and k normalised as whole projections, chosen weights never renormalised.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kOlmoe = {
    .name = "olmoe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kWholeProjection;
          read_experts(keys, h);
          h->moe.n_ff = h->n_ff;
          h->moe.renormalize = false;
        },
};

}  // namespace expertree
