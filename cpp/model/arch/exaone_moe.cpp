// exaone-moe: K-EXAONE; windowed layers with rotary embedding, others without, sigmoid routing with a selection bias,
// leading dense layers, a shared expert.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kExaoneMoe = {
    .name = "exaone-moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          h->window = Window::kSliding;
          h->n_window = keys.require_int("attention.sliding_window");
          read_window_layers(keys, 4, false, h);
          refuse_windowed_sizes(keys, *h);
          h->rope_frequency_scale_windowed = h->rope_frequency_scale;
          for (LayerParameters& layer : h->layers) layer.has_rope = layer.windowed;
          read_experts(keys, h);
          read_leading_dense(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          h->moe.shared = SharedExpert::kPlain;
          h->moe.n_ff_shared = keys.int_or("expert_shared_feed_forward_length", 0, 0);
          if (h->moe.n_ff_shared == 0) h->moe.n_ff_shared = h->moe.n_ff;
          h->moe.selection_bias = Presence::kOptional;
          read_weights_rule(keys, h);
          read_gating(keys, nullptr, h);
        },
};

}  // namespace expertree
