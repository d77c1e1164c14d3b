// qwen2: Qwen2, Qwen2.5, dense; biases on q, k, v.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kQwen2 = {
    .name = "qwen2",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
        },
};

}  // namespace expertree
