// ernie4_5-moe: ERNIE 4.5 21B-A3B and 300B-A47B; leading dense layers, softmax routing with a selection bias.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kErnie45Moe = {
    .name = "ernie4_5-moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kConsecutive;
          h->ignores_output_bias = true;  // as llama.cpp does
          read_experts(keys, h);
          read_leading_dense(keys, h);
          const int64_t step = keys.require_int("interleave_moe_layer_step");
          for (int64_t i = 0; i < h->n_layers; ++i) {
            if (h->layer(i).has_experts && (i + 1) % step != 0) {
              keys.refuse_feature("interleave_moe_layer_step", std::to_string(step), "dense layers between others");
            }
          }
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          h->moe.n_ff_shared = keys.int_or("expert_shared_feed_forward_length", 0, 0);
          if (h->moe.n_ff_shared > 0) h->moe.shared = SharedExpert::kPlain;
          h->moe.selection_bias = Presence::kOptional;
          h->moe.renormalize = true;
        },
};

}  // namespace expertree
