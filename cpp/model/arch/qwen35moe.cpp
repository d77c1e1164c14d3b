// qwen35moe: Qwen3.5 and Qwen3.6 MoE; gated delta net, every fourth layer gated attention; a shared expert; the MTP
// block behind the last layer. Chosen weights always renormalised.
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/hybrid_keys.h"

namespace expertree {

const Architecture kQwen35Moe = {
    .name = "qwen35moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_qwen_hybrid(keys, h);
          read_rope_sections(keys, h);
          read_gated_experts(keys, h);
        },
};

}  // namespace expertree
