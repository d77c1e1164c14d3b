// What the NEON kernels share: 16 lanes in four registers, integer dot products, access to rows.
// Everything is static and only plain structs cross functions, so no object exports a weak symbol (canonical.h).
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpp/kernels/row_walk.h"

namespace expertree::neon {

constexpr int kRows = 4;  // weight rows that advance together: one float accumulator lane per row

static inline uint8x16_t load_bytes(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
static inline int8x16_t load_signed(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }

// canonical.h, C1: lanes 4i .. 4i + 3 in v[i].
struct Lanes {
  float32x4_t v[4];
};

static inline Lanes zero_lanes() {
  const float32x4_t zero = vdupq_n_f32(0.0f);
  return {{zero, zero, zero, zero}};
}

static inline float combine(const Lanes& lanes) {
  const float32x4_t four = vaddq_f32(vaddq_f32(lanes.v[0], lanes.v[2]), vaddq_f32(lanes.v[1], lanes.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(vpadd_f32(two, two), 0);
}

// The lanes after a last, shorter run of elements: lane i goes on as fma(x[i], y[i], lane) for i < n < 16.
static inline float combine_after(const Lanes& lanes, const float* x, const float* y, int64_t n) {
  if (n == 0) return combine(lanes);
  float lane[kLanes];
  for (int i = 0; i < 4; ++i) vst1q_f32(lane + 4 * i, lanes.v[i]);
  for (int64_t i = 0; i < n; ++i) lane[i] = __builtin_fmaf(x[i], y[i], lane[i]);
  return combine_lanes(lane);
}

// (c > x) ? c : x and (c < x) ? c : x: NaN in x is passed on, as canonical_math.h has it.
static inline float32x4_t max_pass_nan(float32x4_t c, float32x4_t x) { return vbslq_f32(vcgtq_f32(c, x), c, x); }
static inline float32x4_t min_pass_nan(float32x4_t c, float32x4_t x) { return vbslq_f32(vcltq_f32(c, x), c, x); }

// The largest lane; a lane that is NaN does not count unless it is the first.
static inline float max_of(float32x4_t x) {
  float lane[4];
  vst1q_f32(lane, x);
  for (int i = 1; i < 4; ++i) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
  return lane[0];
}

// sum + w * q, 16 products in four lanes. |q| <= 127, so two products fit 16 bits even for w = -128.
static inline int32x4_t dot_16(int32x4_t sum, int8x16_t w, int8x16_t q) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, w, q);
#else
  const int16x8_t products = vmull_s8(vget_low_s8(w), vget_low_s8(q));
  return vpadalq_s16(sum, vmlal_s8(products, vget_high_s8(w), vget_high_s8(q)));
#endif
}

// Lane i of the result is the sum of p[i]'s four lanes.
static inline int32x4_t sum_four(const int32x4_t* p) {
  return vpaddq_s32(vpaddq_s32(p[0], p[1]), vpaddq_s32(p[2], p[3]));
}

using RowGroup = WalkRows<kRows>;
using Column = WalkColumn;

static inline RowGroup row_group(const MatmulArgs& args, int64_t row) { return walk_rows<kRows>(args, row); }

// Four binary16 as binary32.
static inline float32x4_t from_halves(uint16x4_t halves) { return vcvt_f32_f16(vreinterpret_f16_u16(halves)); }

// The binary16 at `p + offset[i]` of each row.
static inline float32x4_t load_halves(const std::byte* p, const int64_t* offset) {
  uint16_t half[kRows];
  for (int i = 0; i < kRows; ++i) std::memcpy(&half[i], p + offset[i], 2);
  return from_halves(vld1_u16(half));
}

static inline void store_rows(float* y, int64_t n_rows, float32x4_t value) {
  if (n_rows >= kRows) {
    vst1q_f32(y, value);
    return;
  }
  float lane[kRows];
  vst1q_f32(lane, value);
  for (int64_t i = 0; i < n_rows; ++i) y[i] = lane[i];
}

template <typename Kernel>
static inline void for_each_group(const MatmulArgs& args) {
  walk_groups<Kernel, kRows>(args);
}

}  // namespace expertree::neon
