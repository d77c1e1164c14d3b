// Causal convolution and gated delta rule (canonical.h, C10 and C11).
#include <cmath>

#include "cpp/kernels/scalar/kernels.h"

namespace expertree::scalar {

void convolve(const float* const* x, const float* w, int64_t n_taps, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0.0f;
    for (int64_t t = 0; t < n_taps; ++t) sum = std::fma(w[t * n + i], x[t][i], sum);
    y[i] = sum;
  }
}

void delta_scan(const DeltaScanArgs& args) {
  for (int64_t r = 0; r < args.n_rows; ++r) {
    const DeltaRow& row = args.rows[r];
    for (int64_t i = 0; i < args.n_values; ++i) {
      float predicted = 0.0f;
      for (int64_t j = 0; j < args.n_keys; ++j) {
        predicted = std::fma(row.k[j], args.state[j * args.state_stride + i] * row.decay, predicted);
      }
      const float delta = row.beta * (row.v[i] - predicted);
      float out = 0.0f;
      for (int64_t j = 0; j < args.n_keys; ++j) {
        float& state = args.state[j * args.state_stride + i];
        state = std::fma(row.k[j], delta, state * row.decay);
        if (row.q != nullptr) out = std::fma(row.q[j], state, out);
      }
      if (row.q != nullptr) row.out[i] = out;
    }
  }
}

}  // namespace expertree::scalar
