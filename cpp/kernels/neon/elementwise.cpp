// Quantisation of activations, norms, softmax and element-wise functions (canonical.h, C3 and C5 to C7), NEON.
#if defined(__aarch64__)

#include "cpp/kernels/neon/kernels.h"
#include "cpp/kernels/neon/math.h"
#include "cpp/kernels/neon/vector.h"

namespace expertree::neon {
namespace {

// rint(x * inverse), clamped to +-127, as int16.
inline int16x4_t quantize_four(const float* x, float inverse) {
  const int32x4_t rounded = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inverse));  // to nearest even
  return vmovn_s32(vminq_s32(vmaxq_s32(rounded, vdupq_n_s32(-127)), vdupq_n_s32(127)));
}

// 16 elements and their sum.
inline void quantize_chunk(const float* x, float inverse, int8_t* q, int16_t* sum) {
  const int16x8_t low = vcombine_s16(quantize_four(x, inverse), quantize_four(x + 4, inverse));
  const int16x8_t high = vcombine_s16(quantize_four(x + 8, inverse), quantize_four(x + 12, inverse));
  vst1q_s8(q, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  *sum = vaddvq_s16(vaddq_s16(low, high));
}

template <int kBlock>
void quantize_blocks(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  for (int64_t b = 0; b < n / kBlock; ++b, x += kBlock, q += kBlock, sums16 += kBlock / 16) {
    // Non-negative floats are ordered as their bits are, with infinity and then the NaNs on top.
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < kBlock; i += 4) top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    const uint32_t amax_bits = vmaxvq_u32(top);
    float amax;
    std::memcpy(&amax, &amax_bits, 4);
    const float inverse = 127.0f / amax;
    const bool finite = amax_bits < 0x7f800000u;
    if (finite && inverse <= 3.40282347e+38f) {
      d[b] = amax / 127.0f;
      for (int i = 0; i < kBlock; i += 16) quantize_chunk(x + i, inverse, q + i, sums16 + i / 16);
    } else {
      d[b] = finite ? 0.0f : __builtin_nanf("");
      std::memset(q, 0, kBlock);
      std::memset(sums16, 0, kBlock / 16 * sizeof(int16_t));
    }
  }
}

// y[i] = function(i's four elements of a, of b); b may be null and is then not read.
template <typename Function>
inline void map(const float* a, const float* b, int64_t n, float* y, Function function) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t right = b ? vld1q_f32(b + i) : all(0.0f);
    vst1q_f32(y + i, function(vld1q_f32(a + i), right));
  }
  if (i < n) {
    const size_t left = static_cast<size_t>(n - i) * sizeof(float);
    float lane[2][4] = {};
    std::memcpy(lane[0], a + i, left);
    if (b) std::memcpy(lane[1], b + i, left);
    vst1q_f32(lane[0], function(vld1q_f32(lane[0]), vld1q_f32(lane[1])));
    std::memcpy(y + i, lane[0], left);
  }
}

}  // namespace

void quantize_q8_32(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_blocks<32>(x, n, q, d, sums16);
}

void quantize_q8_256(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16) {
  quantize_blocks<256>(x, n, q, d, sums16);
}

void rms_norm(const float* x, const float* w, float eps, int64_t n, float* y) {
  Lanes squares = zero_lanes();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const float32x4_t four = vld1q_f32(x + i + 4 * j);
      squares.v[j] = fused(four, four, squares.v[j]);
    }
  }
  const float mean = combine_after(squares, x + i, x + i, n - i) / static_cast<float>(n);
  const float r = 1.0f / __builtin_sqrtf(mean + eps);
  if (w) {
    map(x, w, n, y, [&](float32x4_t a, float32x4_t b) { return vmulq_f32(vmulq_n_f32(a, r), b); });
  } else {
    map(x, nullptr, n, y, [&](float32x4_t a, float32x4_t) { return vmulq_n_f32(a, r); });
  }
}

void softmax(const float* x, int64_t n, float* p) {
  float32x4_t top = all(-__builtin_inff());
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t four = vld1q_f32(x + i);
    top = vbslq_f32(vcgtq_f32(four, top), four, top);  // a NaN in x leaves top
  }
  float max = max_of(top);
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  map(x, nullptr, n, p, [&](float32x4_t a, float32x4_t) { return exp_lanes(vsubq_f32(a, all(max))); });
  Lanes sums = zero_lanes();
  for (i = 0; i + 16 <= n; i += 16) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums.v[j] = vaddq_f32(sums.v[j], vld1q_f32(p + i + 4 * j));
  }
  static const float kOnes[kLanes] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const float sum = combine_after(sums, p + i, kOnes, n - i);  // a product with 1 is exact
  map(p, nullptr, n, p, [&](float32x4_t a, float32x4_t) { return vdivq_f32(a, all(sum)); });
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](float32x4_t a, float32x4_t b) { return vmulq_f32(silu_lanes(a), b); });
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](float32x4_t a, float32x4_t b) { return vmulq_f32(gelu_lanes(a), b); });
}

void swiglu_oai(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](float32x4_t a, float32x4_t b) { return swiglu_oai_lanes(a, b); });
}

void relu_mul(const float* gate, const float* up, int64_t n, float* y) {
  map(gate, up, n, y, [](float32x4_t a, float32x4_t b) { return vmulq_f32(max_pass_nan(all(0.0f), a), b); });
}

void axpy(float scale, const float* x, int64_t n, float* acc) {
  map(x, acc, n, acc, [&](float32x4_t a, float32x4_t b) { return fused(all(scale), a, b); });
}

void exp_f32(const float* x, int64_t n, float* y) {
  map(x, nullptr, n, y, [](float32x4_t a, float32x4_t) { return exp_lanes(a); });
}

void log_f32(const float* x, int64_t n, float* y) {
  map(x, nullptr, n, y, [](float32x4_t a, float32x4_t) { return log_lanes(a); });
}

void encode_f16(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; i += 4) {
    const size_t count = n - i < 4 ? static_cast<size_t>(n - i) : 4;
    float lane[4] = {};
    std::memcpy(lane, x + i, count * sizeof(float));
    uint16_t half[4];
    vst1_u16(half, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(lane))));  // to nearest even
    std::memcpy(y + i, half, count * sizeof(uint16_t));
  }
}

}  // namespace expertree::neon

#endif
