#include "cpp/model/block_plan.h"

#include "cpp/model/attention_plan.h"

namespace expertree {
namespace {

// Of the kernel.
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostUsed = 64;
constexpr int64_t kMostGroups = 64;

DeviceGating gating_of(Gating gating) {
  switch (gating) {
    case Gating::kSoftmax: return DeviceGating::kSoftmax;
    case Gating::kSigmoid: return DeviceGating::kSigmoid;
    case Gating::kSoftmaxOfChosen: return DeviceGating::kSoftmaxOfChosen;
    case Gating::kSigmoidOfChosen: return DeviceGating::kSigmoidOfChosen;
  }
  return DeviceGating::kSoftmax;
}

DeviceRouter router_of(const MoeParameters& moe, const MoeWeights& w, int32_t matrix) {
  DeviceRouter router;
  router.matrix = matrix;
  router.own_norm = moe.router_input == RouterInput::kOwnNorm;
  if (router.own_norm) router.norm = data_or_null(w.router_norm);
  router.selection_bias = data_or_null(w.selection_bias);
  router.n_experts = static_cast<int32_t>(moe.n_experts);
  router.n_used = static_cast<int32_t>(moe.n_used);
  router.gating = gating_of(moe.gating);
  router.n_groups = static_cast<int32_t>(moe.n_groups);
  router.n_groups_used = static_cast<int32_t>(moe.n_groups_used);
  router.renormalize = moe.renormalize;
  router.weights_scale = static_cast<float>(moe.weights_scale);
  return router;
}

DeviceMixture mixture_of(const MoeParameters& moe, const MoeWeights& w, int32_t shared) {
  const bool has_norms = !w.norm.empty() || !w.beside_norm.empty() || !w.sum_norm.empty();
  const bool lacks_shared = moe.shared != SharedExpert::kNone && shared < 0;
  if (has_norms || lacks_shared || moe.shared == SharedExpert::kSigmoidGate || moe.dense_beside || moe.weighs_input) {
    return {};
  }
  DeviceMixture mixture{static_cast<int32_t>(w.moe_layer)};
  mixture.scale = static_cast<float>(moe.sum_scale);
  if (moe.shared == SharedExpert::kNone) return mixture;
  mixture.gate = shared;
  mixture.up = shared + 1;
  mixture.down = shared + 2;
  return mixture;
}

}  // namespace

DeviceMatrix router_matrix(const MoeWeights& w) {
  return {w.router.dtype, w.router.rows, w.router.k, w.router.scale, data_or_null(w.router_bias)};
}

bool can_route(const Device& device, const HyperParameters& h, const LayerWeights& w) {
  const MoeParameters& moe = h.moe;
  return w.moe.moe_layer >= 0 && moe.router_input != RouterInput::kLayerInput && moe.n_experts <= kMostExperts &&
         moe.n_used <= kMostUsed && moe.n_groups <= kMostGroups && device.matrix_bytes(router_matrix(w.moe)) > 0;
}

DeviceBlock device_block(const HyperParameters& h, const LayerWeights& w, int64_t layer, const BlockMatrices& first,
                         CacheTypes types) {
  DeviceBlock block;
  block.attention = device_attention(h, w, layer, first.attention, types);
  block.n_embd = h.n_embd;
  block.eps = h.rms_eps;
  block.layer_norm = h.layer_norm;
  block.residual_scale = static_cast<float>(h.residual_scale);
  block.attention_norm = {data_or_null(w.attn_norm), data_or_null(w.attn_norm_bias)};
  block.post_attention_norm = data_or_null(w.post_attention_norm);
  block.feed_forward_norm = {data_or_null(w.ffn_norm), data_or_null(w.ffn_norm_bias)};
  if (first.feed_forward >= 0) {
    block.gate = first.feed_forward;
    block.up = first.feed_forward + 1;
    block.down = first.feed_forward + 2;
  }
  if (first.router >= 0) {
    block.router = router_of(h.moe, w.moe, first.router);
    block.mixture = mixture_of(h.moe, w.moe, first.shared);
  }
  if (block.has_feed_forward() || block.has_mixture()) {
    block.post_feed_forward_norm = data_or_null(w.post_feed_forward_norm);
    if (!w.output_scale.empty()) block.output_scale = w.output_scale[0];
  }
  return block;
}

}  // namespace expertree
