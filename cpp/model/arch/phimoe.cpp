// phimoe: Phi-3.5-MoE as llama.cpp runs it; RMS norms with biases, biases everywhere, long and short rotary factors.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kPhiMoe = {
    .name = "phimoe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          h->rope_factors = RopeFactors::kLongShort;
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->norm_biases = true;
          read_experts(keys, h);
          h->moe.n_ff = h->n_ff;
          h->moe.renormalize = true;
        },
};

}  // namespace expertree
