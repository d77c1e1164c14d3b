// The output head: the part of CudaDense that leaves logits on the device.
#include "cpp/base/error.h"
#include "cuda/kernels/row_kernels.h"
#include "cuda/kernels/top_k_kernels.h"
#include "cuda/runtime/call.h"
#include "cuda/runtime/cuda_dense.h"

namespace expertree::cuda {

void CudaDense::upload_head_norm() {
  upload(device_.head_weight, plan_.head.norm.weight, plan_.head.n_embd);
  upload(device_.head_bias, plan_.head.norm.bias, plan_.head.n_embd);
  plan_.head.norm = {};  // the caller's
}

void CudaDense::enqueue_best(int32_t k) {
  const DeviceHead& head = plan_.head;
  ET_CHECK(head.matrix >= 0 && (has_blocks_ || k_ == head.n_embd) && k >= 1 && k <= kMostBest);
  const int64_t n_vocab = shape(head.matrix).rows;
  const DeviceBestOutputs at = DeviceHead::outputs(n_rows_, k);
  float* outputs = take_outputs(0);
  n_outputs_ += at.size;
  // Behind what is copied back.
  float* logits = device_.outputs + n_outputs_;
  ET_CHECK(n_outputs_ + n_rows_ * n_vocab <= plan_.max_outputs);
  const cudaStream_t stream = stream_.get();
  const int64_t n = head.n_embd;
  CUDA_CHECK(launch_rms_norm(has_blocks_ ? attention_.residual : x_, n, device_.head_weight, device_.head_bias,
                             head.eps, n_rows_, n, device_.inputs.x, n, stream, head.layer_norm));
  set_inputs(device_.inputs.x, n);
  product_into(head.matrix, logits);
  CUDA_CHECK(launch_scale_softcap(logits, n_rows_ * n_vocab, head.scale, head.softcap, stream));
  auto* not_sound = reinterpret_cast<int32_t*>(outputs + at.not_sound);
  CUDA_CHECK(cudaMemsetAsync(not_sound, 0, sizeof(int32_t), stream));
  CUDA_CHECK(launch_top_k(logits, n_rows_, n_vocab, k, outputs + at.values,
                          reinterpret_cast<int32_t*>(outputs + at.ids), not_sound, device_.best_scratch, stream,
                          device_.inputs.n_rows));
}

}  // namespace expertree::cuda
