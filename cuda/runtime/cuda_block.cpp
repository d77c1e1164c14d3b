// A layer from its attention on: the part of CudaDense between two round trips.
#include "cpp/base/error.h"
#include "cuda/kernels/row_kernels.h"
#include "cuda/runtime/call.h"
#include "cuda/runtime/cuda_dense.h"

namespace expertree::cuda {
namespace {

RouterGating gating_of(DeviceGating gating) {
  switch (gating) {
    case DeviceGating::kSoftmax: return RouterGating::kSoftmax;
    case DeviceGating::kSigmoid: return RouterGating::kSigmoid;
    case DeviceGating::kSoftmaxOfChosen: return RouterGating::kSoftmaxOfChosen;
    case DeviceGating::kSigmoidOfChosen: return RouterGating::kSigmoidOfChosen;
  }
  return RouterGating::kSoftmax;
}

}  // namespace

// Adds what lies in `added`; then, where it is asked for, the norm that the feed-forward part reads.
void CudaDense::add_to_residual(const DeviceBlock& block, const float* post_norm, float* normed, int32_t* not_finite) {
  CUDA_CHECK(launch_residual_norm({.residual = attention_.residual,
                                   .add = attention_.added,
                                   .post_norm = post_norm,
                                   .scale = block.residual_scale,
                                   .w = block.feed_forward_norm.weight,
                                   .bias = block.feed_forward_norm.bias,
                                   .eps = block.eps,
                                   .normed = normed,
                                   .centred = block.layer_norm,
                                   .not_finite = not_finite},
                                  n_rows_, block.n_embd, stream_.get(), device_.inputs.n_rows));
}

void CudaDense::choose_experts(const DeviceBlock& block, const DeviceBlockOutputs& at, float* outputs) {
  const DeviceRouter& router = block.router;
  const int64_t n = block.n_embd;
  if (router.own_norm) {
    CUDA_CHECK(launch_rms_norm(attention_.residual, n, router.norm, nullptr, block.eps, n_rows_, n, device_.inputs.x, n,
                               stream_.get(), block.layer_norm));
    set_inputs(device_.inputs.x, n);
  }
  product_into(router.matrix, outputs + at.scores);
  const Router rule{.selection_bias = router.selection_bias,
                    .n_experts = router.n_experts,
                    .n_used = router.n_used,
                    .gating = gating_of(router.gating),
                    .n_groups = router.n_groups,
                    .n_groups_used = router.n_groups_used,
                    .renormalize = router.renormalize,
                    .weights_scale = router.weights_scale};
  auto* not_finite = reinterpret_cast<int32_t*>(outputs + at.not_finite);
  CUDA_CHECK(cudaMemsetAsync(not_finite, 0, sizeof(int32_t), stream_.get()));
  CUDA_CHECK(launch_router(rule, outputs + at.scores, n_rows_, reinterpret_cast<int32_t*>(outputs + at.ids),
                           outputs + at.weights, not_finite, stream_.get(), device_.inputs.n_rows));
}

// The residual stream stays where all blocks find it.
void CudaDense::begin_blocks() {
  has_blocks_ = true;
  n_outputs_ += kDeviceCallHead;
  const auto size = static_cast<size_t>(n_rows_ * k_) * sizeof(float);
  CUDA_CHECK(cudaMemcpyAsync(attention_.residual, device_.inputs.x, size, cudaMemcpyDeviceToDevice, stream_.get()));
  CUDA_CHECK(cudaMemsetAsync(device_.outputs, 0, kDeviceCallHead * sizeof(float), stream_.get()));
}

void CudaDense::enqueue_block(int32_t number) {
  const AttentionDevice::Block& there = attention_.blocks[static_cast<size_t>(number)];
  const DeviceBlock& block = there.parameters;
  const cudaStream_t stream = stream_.get();
  const int64_t n = block.n_embd;
  ET_CHECK(k_ == n && (has_blocks_ || n_outputs_ == 0));
  if (!has_blocks_) begin_blocks();
  const DeviceBlockOutputs at = block.outputs(n_rows_);
  float* outputs = take_outputs(0);
  n_outputs_ += at.size;
  ET_CHECK(n_outputs_ <= plan_.max_outputs);
  CUDA_CHECK(launch_rms_norm(attention_.residual, n, block.attention_norm.weight, block.attention_norm.bias, block.eps,
                             n_rows_, n, device_.inputs.x, n, stream, block.layer_norm));
  set_inputs(device_.inputs.x, n);
  attention(there, outputs + at.keys, outputs + at.values, attention_.added);
  float* normed = block.has_feed_forward() ? device_.inputs.x : outputs + at.normed;
  add_to_residual(block, block.post_attention_norm, normed, nullptr);
  set_inputs(normed, n);
  if (block.has_feed_forward()) {
    feed_forward_into(block.gate, block.up, block.down, attention_.added);
    end_block(block);
  }
  if (block.has_router()) choose_experts(block, at, outputs);
}

// Adds what the layer's last part left.
void CudaDense::end_block(const DeviceBlock& block) {
  add_to_residual(block, block.post_feed_forward_norm, nullptr, reinterpret_cast<int32_t*>(device_.outputs));
  CUDA_CHECK(
      launch_scale_softcap(attention_.residual, n_rows_ * block.n_embd, block.output_scale, 0.0f, stream_.get()));
}

// Reads what the block before it in the call left in the outputs.
void CudaDense::enqueue_mixture(int32_t number) {
  const DeviceBlock& block = attention_.blocks[static_cast<size_t>(number)].parameters;
  const DeviceMixture& mixture = block.mixture;
  const DeviceBlockOutputs at = block.outputs(n_rows_);
  const float* outputs = device_.outputs + n_outputs_ - at.size;
  const bool has_shared = mixture.down >= 0;
  if (has_shared) {
    set_inputs(outputs + at.normed, block.n_embd);
    feed_forward_into(mixture.gate, mixture.up, mixture.down, attention_.added);
  }
  experts_->enqueue_mixture({.layer = mixture.layer,
                             .x = outputs + at.normed,
                             .chosen = reinterpret_cast<const int32_t*>(outputs + at.ids),
                             .weights = outputs + at.weights,
                             .n_rows = n_rows_,
                             .n_used = block.router.n_used,
                             .n_rows_device = device_.inputs.n_rows,
                             .beside = has_shared ? attention_.added : nullptr,
                             .scale = mixture.scale,
                             .y = attention_.added},
                            stream_.get());
  end_block(block);
}

void CudaDense::enqueue_residual() {
  ET_CHECK(has_blocks_);
  float* to = take_outputs(plan_.blocks.front().n_embd);
  const auto size = static_cast<size_t>(n_rows_ * plan_.blocks.front().n_embd) * sizeof(float);
  CUDA_CHECK(cudaMemcpyAsync(to, attention_.residual, size, cudaMemcpyDeviceToDevice, stream_.get()));
}

}  // namespace expertree::cuda
