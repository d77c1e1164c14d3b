// Quantisation of activations, norms, softmax and element-wise functions (canonical.h, C3 and C5 to C7).
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpp/kernels/canonical.h"
#include "cpp/kernels/canonical_math.h"
#include "cpp/kernels/scalar/kernels.h"
#include "cpp/tensor/half.h"

namespace expertree::scalar {
namespace {

void quantize_rows(const float* x, int64_t n, int64_t block, int8_t* q, float* d, int16_t* sums16) {
  for (int64_t b = 0; b < n / block; ++b) {
    float amax = 0.0f;
    bool finite = true;
    for (int64_t i = b * block; i < (b + 1) * block; ++i) {
      finite = finite && std::isfinite(x[i]);
      amax = std::max(amax, std::fabs(x[i]));
    }
    const float inverse = 127.0f / amax;
    const bool zero = !finite || !std::isfinite(inverse);
    d[b] = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0.0f : amax / 127.0f;
    for (int64_t i = b * block; i < (b + 1) * block; ++i) {
      const float scaled = zero ? 0.0f : std::nearbyint(x[i] * inverse);
      q[i] = static_cast<int8_t>(std::clamp(scaled, -127.0f, 127.0f));
    }
  }
  for (int64_t j = 0; j < n / 16; ++j) {
    int16_t sum = 0;
    for (int64_t i = 0; i < 16; ++i) sum = static_cast<int16_t>(sum + q[16 * j + i]);
    sums16[j] = sum;
  }
}

}  // namespace

void quantize_q8_32(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_rows(x, n, 32, q, d, sums16);
}

void quantize_q8_256(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_rows(x, n, 256, q, d, sums16);
}

void rms_norm(const float* x, const float* w, float eps, int64_t n, float* y) {
  float lane[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % kLanes] = std::fma(x[i], x[i], lane[i % kLanes]);
  const float r = 1.0f / std::sqrt(combine_lanes(lane) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = w ? (x[i] * r) * w[i] : x[i] * r;
}

void softmax(const float* x, int64_t n, float* p) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  float lane[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    p[i] = canonical_exp(x[i] - max);
    lane[i % kLanes] = lane[i % kLanes] + p[i];
  }
  const float sum = combine_lanes(lane);
  for (int64_t i = 0; i < n; ++i) p[i] = p[i] / sum;
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = canonical_silu(gate[i]) * up[i];
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = canonical_gelu(gate[i]) * up[i];
}

void swiglu_oai(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = canonical_swiglu_oai(gate[i], up[i]);
}

void relu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = max_pass_nan(0.0f, gate[i]) * up[i];
}

void axpy(float scale, const float* x, int64_t n, float* acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] = std::fma(scale, x[i], acc[i]);
}

void exp_f32(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = canonical_exp(x[i]);
}

void log_f32(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = canonical_log(x[i]);
}

void encode_f16(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = float_to_half(x[i]);
}

}  // namespace expertree::scalar
