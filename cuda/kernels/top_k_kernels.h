// Launcher of the best logits of each row, so that the others stay on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace expertree::cuda {

constexpr int32_t kMaxTopK = 1024;

int64_t top_k_scratch_bytes(int64_t n_rows, int64_t n, int32_t k);
// values, ids: [n_rows][k], largest first, ties to the lower id; logits: [n_rows][n], NaN below all numbers; k <= n.
// not_sound, where not null: set to 1 when a logit is NaN or +inf (never to 0). n_rows_device: as in row_kernels.h.
cudaError_t launch_top_k(const float* logits, int64_t n_rows, int64_t n, int32_t k, float* values, int32_t* ids,
                         int32_t* not_sound, void* scratch, cudaStream_t stream,
                         const int32_t* n_rows_device = nullptr);

}  // namespace expertree::cuda
