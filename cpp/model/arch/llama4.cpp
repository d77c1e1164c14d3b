// llama4: Llama 4 Scout and Maverick; three layers with chunks of 8,192 positions to one that sees everything without
// rotary embedding; the weight, a sigmoid, multiplies the expert's input.
#include "cpp/model/arch/architecture.h"

namespace expertree {
namespace {

constexpr int64_t kChunk = 8192;      // fixed, whatever the file says
constexpr int64_t kNoRopeStep = 4;    // every fourth layer
constexpr int64_t kMaverickExperts = 128;

void read_layers(const ArchKeys& keys, HyperParameters* h) {
  const int64_t moe_step = keys.require_int("interleave_moe_layer_step", 0);
  for (int64_t i = 0; i < h->n_layers; ++i) {
    LayerParameters& layer = h->layers[static_cast<size_t>(i)];
    layer.has_experts = moe_step > 0 && (i + 1) % moe_step == 0;
    layer.has_rope = (i + 1) % kNoRopeStep != 0;
    layer.has_temperature = !layer.has_rope;
  }
}

}  // namespace

const Architecture kLlama4 = {
    .name = "llama4",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kConsecutive;
          if (keys.int_or("attention.sliding_window", kChunk, 0) == 0) {
            keys.refuse_feature("attention.sliding_window", "0", "the form without chunks");
          }
          h->window = Window::kChunked;
          h->n_window = kChunk;
          read_window_layers(keys, 4, false, h);
          refuse_windowed_sizes(keys, *h);
          read_windowed_rope(keys, h->rope_base, WindowedScale::kOfFile, h);
          h->temperature = {.scale = 0.1, .length = static_cast<double>(kChunk), .offset = 1.0};
          read_experts(keys, h);
          read_layers(keys, h);
          if (h->moe.n_experts != kMaverickExperts) {
            h->qk_norm = QkNorm::kPerHeadPlain;
            h->qk_norm_after_rope = true;
          }
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length");
          h->moe.gating = Gating::kSigmoidOfChosen;
          h->moe.weighs_input = true;
          h->moe.shared = SharedExpert::kPlain;
          h->moe.n_ff_shared = h->moe.n_ff;
        },
};

}  // namespace expertree
