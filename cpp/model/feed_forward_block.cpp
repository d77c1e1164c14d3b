// The feed-forward part of a layer: dense, or a mixture of experts.
#include "cpp/base/scratch.h"
#include "cpp/model/forward.h"

namespace expertree {

void Forward::feed_forward_part(const Chunk& chunk, int64_t layer) {
  const LayerWeights& w = weights(layer);
  const bool has_experts = w.moe.moe_layer >= 0;
  const ZoneScope zone(chunk.timeline, has_experts ? Zone::kExperts : Zone::kDense, layer);
  if (is_layer_done_) return;
  if (block_ == nullptr) {
    normed_.reset(chunk.n, h_.n_embd);
    norm(residual_.data(), w.ffn_norm, w.ffn_norm_bias, &normed_);
  }
  if (has_experts) {
    mixture(chunk, layer);
  } else {
    feed_forward(w.dense, h_.layer(layer).n_ff);
  }
  add_to_residual(chunk, w.post_feed_forward_norm);
  if (w.output_scale.empty()) return;
  for (float& x : residual_) x = x * w.output_scale[0];
}

// Of normed_, into output_.
void Forward::feed_forward(const FeedForwardWeights& w, int64_t n_ff) {
  const int64_t n = normed_.rows();
  output_.resize(static_cast<size_t>(n * h_.n_embd));
  if (products_.begin_feed_forward(w, normed_)) return products_.end_feed_forward(output_.data());
  fit(&gate_, static_cast<size_t>(n * n_ff));
  fit(&up_, static_cast<size_t>(n * n_ff));
  const CpuBackend::Product in[] = {{w.gate, gate_.data(), n_ff, data_or_null(w.gate_bias)},
                                    {w.up, up_.data(), n_ff, data_or_null(w.up_bias)}};
  backend_.matmul(normed_, in);
  gated_unit(n, n_ff);
  const CpuBackend::Product out[] = {{w.down, output_.data(), h_.n_embd, data_or_null(w.down_bias)}};
  backend_.matmul(hidden_, out);
}

// gate_ and up_, [n_rows][n_ff], into hidden_.
void Forward::gated_unit(int64_t n_rows, int64_t n_ff) {
  const KernelTable& kernels = backend_.kernels();
  GatedUnitFn unit = kernels.silu_mul;
  switch (h_.unit) {
    case GatedUnit::kSwiGlu: break;
    case GatedUnit::kGeGlu: unit = kernels.gelu_mul; break;
    case GatedUnit::kSwiGluOai: unit = kernels.swiglu_oai; break;
    case GatedUnit::kReGlu: unit = kernels.relu_mul; break;
  }
  hidden_.reset(n_rows, n_ff);
  backend_.pool().parallel_for(
      n_rows, [&](int64_t r) { unit(gate_.data() + r * n_ff, up_.data() + r * n_ff, n_ff, hidden_.row(r)); });
}

}  // namespace expertree
