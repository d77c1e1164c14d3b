// Causal convolution and gated delta rule (canonical.h, C10 and C11), NEON.
#if defined(__aarch64__)

#include "cpp/kernels/neon/kernels.h"
#include "cpp/kernels/neon/vector.h"

namespace expertree::neon {
namespace {

// Four columns at once, or the one that is left.
struct Four {
  using Value = float32x4_t;
  static constexpr int64_t kWidth = 4;
  static Value all(float x) { return vdupq_n_f32(x); }
  static Value load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, Value x) { vst1q_f32(p, x); }
  static Value fused(float a, Value b, Value c) { return vfmaq_n_f32(c, b, a); }
  static Value fused(Value a, Value b, Value c) { return vfmaq_f32(c, a, b); }
  static Value product(Value a, float b) { return vmulq_n_f32(a, b); }
  static Value difference(Value a, Value b) { return vsubq_f32(a, b); }
};
struct One {
  using Value = float;
  static constexpr int64_t kWidth = 1;
  static Value all(float x) { return x; }
  static Value load(const float* p) { return *p; }
  static void store(float* p, Value x) { *p = x; }
  static Value fused(Value a, Value b, Value c) { return __builtin_fmaf(a, b, c); }
  static Value product(Value a, float b) { return a * b; }
  static Value difference(Value a, Value b) { return a - b; }
};

template <typename V>
inline void convolve_at(const float* const* x, const float* w, int64_t n_taps, int64_t n, int64_t i, float* y) {
  typename V::Value sum = V::all(0.0f);
  for (int64_t t = 0; t < n_taps; ++t) sum = V::fused(V::load(w + t * n + i), V::load(x[t] + i), sum);
  V::store(y + i, sum);
}

// kVectors * V::kWidth columns of the state.
template <typename V, int kVectors>
inline void scan_columns(const DeltaScanArgs& args, const DeltaRow& row, int64_t column) {
  typename V::Value delta[kVectors];
  typename V::Value out[kVectors];
  for (int i = 0; i < kVectors; ++i) delta[i] = out[i] = V::all(0.0f);
  const float* in = args.state + column;
  for (int64_t j = 0; j < args.n_keys; ++j, in += args.state_stride) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      delta[i] = V::fused(row.k[j], V::product(V::load(in + i * V::kWidth), row.decay), delta[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    delta[i] = V::product(V::difference(V::load(row.v + column + i * V::kWidth), delta[i]), row.beta);
  }
  float* state = args.state + column;
  for (int64_t j = 0; j < args.n_keys; ++j, state += args.state_stride) {
    const float q = row.q ? row.q[j] : 0.0f;
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      float* at = state + i * V::kWidth;
      const auto moved = V::fused(row.k[j], delta[i], V::product(V::load(at), row.decay));
      V::store(at, moved);
      out[i] = V::fused(q, moved, out[i]);
    }
  }
  if (row.q == nullptr) return;
  for (int i = 0; i < kVectors; ++i) V::store(row.out + column + i * V::kWidth, out[i]);
}

template <typename V, int kVectors>
inline int64_t scan_rows(const DeltaScanArgs& args, int64_t column) {
  for (; args.n_values - column >= kVectors * V::kWidth; column += kVectors * V::kWidth) {
    for (int64_t r = 0; r < args.n_rows; ++r) scan_columns<V, kVectors>(args, args.rows[r], column);
  }
  return column;
}

}  // namespace

void convolve(const float* const* x, const float* w, int64_t n_taps, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) convolve_at<Four>(x, w, n_taps, n, i, y);
  for (; i < n; ++i) convolve_at<One>(x, w, n_taps, n, i, y);
}

// Columns go outside: those that are under way stay in the first cache for all rows.
void delta_scan(const DeltaScanArgs& args) {
  int64_t column = scan_rows<Four, 8>(args, 0);
  column = scan_rows<Four, 1>(args, column);
  scan_rows<One, 1>(args, column);
}

}  // namespace expertree::neon

#endif
