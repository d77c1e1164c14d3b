// lfm2moe: LFM2-8B-A1B, LFM2-24B-A2B; short convolutions, attention in the layers that have KV heads, leading dense layers,
// then experts with a selection bias. Chosen weights always renormalised.
#include "cpp/model/arch/architecture.h"

namespace expertree {
namespace {

// attention.head_count_kv of 0 makes a layer a convolution.
void read_short_conv(const ArchKeys& keys, HyperParameters* h) {
  h->recurrent.n_taps = keys.require_int("shortconv.l_cache", 2);
  h->recurrent.n_channels = h->n_embd;
  if (h->recurrent.n_taps > kMostTaps) {
    keys.refuse_value("shortconv.l_cache", h->recurrent.n_taps, "at most 64");
  }
  for (LayerParameters& layer : h->layers) {
    if (layer.n_kv_heads == 0) layer.mixer = Mixer::kShortConv;
  }
}

}  // namespace

const Architecture kLfm2Moe = {
    .name = "lfm2moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          h->qk_norm = QkNorm::kPerHead;
          h->output_norm = "token_embd_norm";
          read_short_conv(keys, h);
          read_experts(keys, h);
          read_leading_dense(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          h->moe.selection_bias = Presence::kRequired;
          h->moe.renormalize = true;
          read_gating(keys, nullptr, h);
        },
};

}  // namespace expertree
