// qwen35: Qwen3.5, dense; gated delta net, every fourth layer gated attention; may carry an MTP block.
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/hybrid_keys.h"

namespace expertree {

const Architecture kQwen35 = {
    .name = "qwen35",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          read_rope_sections(keys, h);
          h->qk_norm = QkNorm::kPerHead;
          h->gated_attention = true;
          h->ffn_norm = "post_attention_norm";
          read_delta_net(keys, h);
          read_recurrent_layers(keys, Mixer::kDeltaNet, h);
        },
};

}  // namespace expertree
