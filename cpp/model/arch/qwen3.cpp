// qwen3: Qwen3, dense; RMS norm on each head of q and k.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kQwen3 = {
    .name = "qwen3",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
        },
};

}  // namespace expertree
