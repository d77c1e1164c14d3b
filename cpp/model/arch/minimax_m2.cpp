// minimax-m2: MiniMax M2; q and k normalised as whole projections, rotary embedding of part of a head, gating with a
// selection bias.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kMiniMaxM2 = {
    .name = "minimax-m2",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kWholeProjection;
          read_experts(keys, h);
          keys.require_same_int("expert_feed_forward_length");  // files have it; the width used is the other key's
          h->moe.n_ff = h->n_ff;
          h->moe.selection_bias = Presence::kRequired;
          h->moe.renormalize = true;
          read_gating(keys, nullptr, h);
        },
};

}  // namespace expertree
