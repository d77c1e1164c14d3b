// qwen35: Qwen3.5, dense; gated delta net, every fourth layer gated attention; may carry an MTP block.
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/hybrid_keys.h"

namespace expertree {

const Architecture kQwen35 = {
    .name = "qwen35",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_qwen_hybrid(keys, h);
          read_rope_sections(keys, h);
        },
};

}  // namespace expertree
