// qwen3next: Qwen3-Next-80B-A3B; gated delta net whose neighbouring value heads share a key head, every fourth layer
// gated attention; a shared expert. Chosen weights always renormalised.
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/hybrid_keys.h"

namespace expertree {

const Architecture kQwen3Next = {
    .name = "qwen3next",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          h->gated_attention = true;
          h->ffn_norm = "post_attention_norm";
          read_delta_net(keys, h);
          h->recurrent.neighbours_share_key = true;
          read_recurrent_layers(keys, Mixer::kDeltaNet, h);
          read_gated_experts(keys, h);
        },
};

}  // namespace expertree
