// qwen3next: Qwen3-Next-80B-A3B; gated delta net whose neighbouring value heads share a key head, every fourth layer
// gated attention; a shared expert. Chosen weights always renormalised.
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/hybrid_keys.h"

namespace expertree {

const Architecture kQwen3Next = {
    .name = "qwen3next",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_qwen_hybrid(keys, h);
          h->recurrent.neighbours_share_key = true;
          read_gated_experts(keys, h);
        },
};

}  // namespace expertree
