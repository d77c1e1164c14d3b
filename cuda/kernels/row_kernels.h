// Launchers of what works on rows of floats: norms, rotary embedding, router. Rules as in expert_kernels.h.
//
// n_rows_device, [1] or null: rows from that one on are left alone, so that one grid serves any number up to n_rows. What
// only computes rows that nobody reads is not told.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace expertree::cuda {

// y[r] = rms_norm(x[r]) * w, + bias; rows of n floats, strides in floats. w and bias may be null; y may be x. centred: a
// layer norm, of x[r] less its mean.
cudaError_t launch_rms_norm(const float* x, int64_t x_stride, const float* w, const float* bias, float eps,
                            int64_t n_rows, int64_t n, float* y, int64_t y_stride, cudaStream_t stream,
                            bool centred = false);

// residual[r] += a * scale, where a = add[r], or rms_norm(add[r]) * post_norm where that is given; then
// normed[r] = rms_norm(residual[r]) * w, + bias (normed null: left out). Rows of n floats, back to back.
struct ResidualNorm {
  float* residual;
  const float* add;
  const float* post_norm;  // [n] or null
  float scale;
  const float* w;  // [n] or null
  const float* bias;  // [n] or null
  float eps;
  float* normed;
  bool centred;  // as of launch_rms_norm
  int32_t* not_finite;  // set to 1 when an element of the residual stream is not a finite number (never to 0); or null
};
cudaError_t launch_residual_norm(const ResidualNorm& args, int64_t n_rows, int64_t n, cudaStream_t stream,
                                 const int32_t* n_rows_device = nullptr);

// Turns the first 2 * n_pairs elements of each head in place, then multiplies the whole head by scale[r] where given.
struct Rope {
  float* x;  // row r, head i: x + r * row_stride + i * head_stride
  int64_t row_stride;
  int64_t head_stride;
  int32_t n_heads;
  int32_t head_dim;
  const float* cos;  // [n_rows][n_pairs], as model/rope.h makes them; yarn, factors and magnitude are in them
  const float* sin;
  int32_t n_pairs;  // 0: nothing turns
  bool consecutive;  // pairs (2i, 2i + 1), not (i, i + n_pairs)
  const float* scale;  // [n_rows] or null
};
cudaError_t launch_rope(const Rope& args, int64_t n_rows, cudaStream_t stream);

enum class RouterGating : int32_t { kSoftmax, kSigmoid, kSoftmaxOfChosen, kSigmoidOfChosen };

struct Router {
  const float* selection_bias;  // [n_experts] or null
  int32_t n_experts;  // up to 1024
  int32_t n_used;  // up to 64
  RouterGating gating;
  int32_t n_groups;  // up to 64; 1: none
  int32_t n_groups_used;
  bool renormalize;
  float weights_scale;
};
// scores: [n_rows][n_experts], the router's product with its bias; gated in place. ids, weights: [n_rows][n_used], best
// first. not_finite: set to 1 when a score is not a finite number (never to 0).
cudaError_t launch_router(const Router& router, float* scores, int64_t n_rows, int32_t* ids, float* weights,
                          int32_t* not_finite, cudaStream_t stream, const int32_t* n_rows_device = nullptr);

// y = x * scale[slot] for weighted inputs: y[r * n_used + i] = x[r] * weights[r][i]; rows of n floats, back to back.
cudaError_t launch_weigh_inputs(const float* x, const float* weights, int64_t n_rows, int32_t n_used, int64_t n,
                                float* y, cudaStream_t stream);

// y[i] = y[i] * (1 / (1 + exp(-gate))): gate[i] for gated attention (gate_stride 0: gate[row]), n elements a row.
cudaError_t launch_sigmoid_gate(float* y, const float* gate, bool gate_per_row, int64_t n_rows, int64_t n,
                                cudaStream_t stream);

// x = x * scale, then soft cap c where it is not 0 (canonical.h, C13).
cudaError_t launch_scale_softcap(float* x, int64_t n, float scale, float softcap, cudaStream_t stream);

// x to +- limit, where that is not 0; NaN stays.
cudaError_t launch_clamp(float* x, int64_t n, float limit, cudaStream_t stream);

}  // namespace expertree::cuda
