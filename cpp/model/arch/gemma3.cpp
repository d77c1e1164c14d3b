// gemma3: Gemma 3, dense; five windowed layers to one that sees everything, each kind with its own rotary base; norms
// before and behind each part, GeGLU.
#include <cmath>

#include "cpp/model/arch/architecture.h"

namespace expertree {

const Architecture kGemma3 = {
    .name = "gemma3",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          h->n_window = keys.int_or("attention.sliding_window", 0, 0);
          if (h->n_window > 0) {
            h->window = Window::kSliding;
            read_window_layers(keys, 6, false, h);
            refuse_windowed_sizes(keys, *h);
            read_windowed_rope(keys, 10000.0, WindowedScale::kOne, h);
          }
          // The 27B model divides by the square root of width / heads instead of the head size.
          constexpr int64_t kLayersOf27B = 62;
          const int64_t divisor = h->n_layers == kLayersOf27B ? h->n_embd / h->n_heads : h->head_dim_k;
          h->attention_scale = 1.0 / std::sqrt(static_cast<double>(divisor));
          h->post_attention_norm = "post_attention_norm";
          h->post_feed_forward_norm = "post_ffw_norm";
          h->unit = GatedUnit::kGeGlu;
          h->embedding_scale = std::sqrt(static_cast<double>(h->n_embd));
          h->logit_softcap = keys.float_or("final_logit_softcapping", 0.0);
        },
};

}  // namespace expertree
