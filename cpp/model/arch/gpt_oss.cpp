// gpt-oss: GPT-OSS 20B and 120B; attention sinks, every other layer with a window, biases everywhere, clamped SwiGLU,
// weights a softmax over the chosen experts.
#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kGptOss = {
    .name = "gpt-oss",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          if (h->n_rot != h->head_dim_k) {
            keys.refuse_feature("rope.dimension_count", std::to_string(h->n_rot), "rotary embedding of part of a head");
          }
          h->window = Window::kSliding;
          h->n_window = keys.require_int("attention.sliding_window");
          read_window_layers(keys, 2, false, h);
          refuse_windowed_sizes(keys, *h);
          read_windowed_rope(keys, h->rope_base, WindowedScale::kOfFile, h);
          h->attention_sinks = Presence::kRequired;
          h->ffn_norm = "post_attention_norm";
          h->unit = GatedUnit::kSwiGluOai;
          read_experts(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          h->moe.gating = Gating::kSoftmaxOfChosen;
          h->moe.biased = true;
        },
};

}  // namespace expertree
