// smallthinker: SmallThinker 4B-A0.6B and 21B-A3B; the router reads what the layer reads, ReGLU experts; with a window,
// every fourth layer sees everything and has no rotary embedding.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kSmallThinker = {
    .name = "smallthinker",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          constexpr int64_t kWindow = 4096;  // fixed, whatever the file says
          constexpr int64_t kStep = 4;
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          if (keys.int_or("attention.sliding_window", 0, 0) > 0) {
            h->window = Window::kSliding;
            h->n_window = kWindow;
            read_window_layers(keys, kStep, true, h);
            refuse_windowed_sizes(keys, *h);
            read_windowed_rope(keys, h->rope_base, WindowedScale::kOfFile, h);
            for (int64_t i = 0; i < h->n_layers; i += kStep) {
              h->layers[static_cast<size_t>(i)].has_rope = h->n_layers == kStep;
            }
          }
          h->unit = GatedUnit::kReGlu;
          read_experts(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          h->moe.router_input = RouterInput::kLayerInput;
          h->moe.renormalize = true;
          read_gating(keys, nullptr, h);
        },
};

}  // namespace expertree
