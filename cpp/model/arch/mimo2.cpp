// mimo2: MiMo V2 Flash; windowed layers, sinks where the file has them, values of another size than keys, layers with
// experts where there is a router.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kMiMo2 = {
    .name = "mimo2",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->window = Window::kSliding;
          h->n_window = keys.require_int("attention.sliding_window");
          read_window_layers(keys, -1, false, h);
          refuse_windowed_sizes(keys, *h);
          read_windowed_rope(keys, 10000.0, WindowedScale::kOne, h);
          h->attention_sinks = Presence::kOptional;
          const double value_scale = keys.float_or("attention.value_scale", 0.0);
          if (value_scale != 0.0) h->attention_output_scale = value_scale;
          read_experts(keys, h);
          for (int64_t i = 0; i < h->n_layers; ++i) {
            const std::string router = "blk." + std::to_string(i) + ".ffn_gate_inp.weight";
            h->layers[static_cast<size_t>(i)].has_experts = keys.reader().find_tensor(router) != nullptr;
          }
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          h->moe.gating = Gating::kSigmoid;
          h->moe.selection_bias = Presence::kOptional;
          h->moe.renormalize = true;
        },
};

}  // namespace expertree
