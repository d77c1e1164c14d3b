// Attention of query rows (canonical.h, C8), NEON. Up to four pairs of a row and a head ("heads" below) share each load of a
// key or a value.
#if defined(__aarch64__)

#include "cpp/kernels/attention_walk.h"
#include "cpp/kernels/canonical.h"
#include "cpp/kernels/neon/kernels.h"
#include "cpp/kernels/neon/math.h"
#include "cpp/kernels/neon/vector.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

namespace expertree::neon {
namespace {

constexpr int kHeads = 4;
constexpr int kFours = kAttentionTile / 4;  // registers of a tile's scores

// s[h][j .. j + kP) = dot16(q of head h, k of those positions) * scale.
template <int kH, int kP>
inline void scores(const float* const* q, const Tile& tile, int64_t j, int64_t dim, float scale,
                   float (*s)[kAttentionTile]) {
  const float* const* k = tile.k + j;
  Lanes acc[kH][kP];
  for (int h = 0; h < kH; ++h) {
    for (int p = 0; p < kP; ++p) acc[h][p] = zero_lanes();
  }
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
#pragma GCC unroll 4
      for (int p = 0; p < kP; ++p) {
        const float32x4_t key = vld1q_f32(k[p] + i + 4 * e);
#pragma GCC unroll 4
        for (int h = 0; h < kH; ++h) {
          acc[h][p].v[e] = fused(vld1q_f32(q[h] + i + 4 * e), key, acc[h][p].v[e]);
        }
      }
    }
  }
  for (int p = 0; p < kP; ++p) {
    for (int h = 0; h < kH; ++h) {
      s[h][j + p] = combine_after(acc[h][p], q[h] + i, k[p] + i, dim - i) * scale;
    }
  }
}

// One head's n scores become its p, those behind them 0; updates m and l, returns c.
inline float weigh(float* s, int64_t n, float softcap, float* m, float* l) {
  // A score of -inf leaves the maximum as it is and weighs +0, which leaves a lane of the sum as it is. (When the
  // maximum is -inf or NaN, so is some true score or the sink, and the sum is NaN either way.)
  for (int64_t j = n; j < kAttentionTile; ++j) s[j] = -__builtin_inff();
  float32x4_t score[kFours];
  float32x4_t top = all(*m);
  for (int i = 0; i < kFours; ++i) {
    score[i] = vld1q_f32(s + 4 * i);
    if (softcap > 0.0f) {
      const uint32x4_t exists = vcgtq_s32(vdupq_n_s32(static_cast<int32_t>(n) - 4 * i), int32x4_t{0, 1, 2, 3});
      score[i] = vbslq_f32(exists, softcap_lanes(score[i], softcap), score[i]);
    }
    top = vbslq_f32(vcgtq_f32(score[i], top), score[i], top);  // a NaN score leaves top
  }
  const float m2 = max_of(top);
  const float c = vgetq_lane_f32(exp_lanes(all(*m - m2)), 0);
  Lanes sum = zero_lanes();
#pragma GCC unroll 8
  for (int i = 0; i < kFours; ++i) {
    const float32x4_t p = exp_lanes(vsubq_f32(score[i], all(m2)));
    sum.v[i % 4] = vaddq_f32(sum.v[i % 4], p);
    vst1q_f32(s + 4 * i, p);
  }
  *l = __builtin_fmaf(*l, c, combine(sum));
  *m = m2;
  return c;
}

// acc[h][d] = acc * c, then fma(p[j], v[j][d], acc) in increasing j, for kV registers of d.
template <int kH, int kV>
inline void add_values_at(const Tile& tile, const float (*p)[kAttentionTile], const float* c, int64_t d,
                          float* const* out) {
  float32x4_t acc[kH][kV];
  for (int h = 0; h < kH; ++h) {
    for (int i = 0; i < kV; ++i) acc[h][i] = vmulq_n_f32(vld1q_f32(out[h] + d + 4 * i), c[h]);
  }
  for (int64_t j = 0; j < tile.t; ++j) {
    const float* v = tile.v[j] + d;
#pragma GCC unroll 16
    for (int i = 0; i < kV; ++i) {
      const float32x4_t value = vld1q_f32(v + 4 * i);
#pragma GCC unroll 4
      for (int h = 0; h < kH; ++h) acc[h][i] = vfmaq_n_f32(acc[h][i], value, p[h][j]);
    }
  }
  for (int h = 0; h < kH; ++h) {
    for (int i = 0; i < kV; ++i) vst1q_f32(out[h] + d + 4 * i, acc[h][i]);
  }
}

// The same for one element.
inline float add_value(const Tile& tile, const float* p, float c, int64_t d, float out) {
  float acc = out * c;
  for (int64_t j = 0; j < tile.t; ++j) acc = __builtin_fmaf(p[j], tile.v[j][d], acc);
  return acc;
}

template <int kH>
void weigh_pairs(const AttendArgs& args, const Tile& tile, const float* const* q, RunningSoftmax* states,
                 float (*p)[kAttentionTile], float* c) {
  constexpr int kP = kH == 1 ? 4 : kH == 2 ? 2 : 1;  // positions at once in the scores: up to 16 chains
  for (int64_t j = 0; j < tile.t; j += kP) {
    scores<kH, kP>(q, tile, j, args.head_dim_k, args.scale, p);
  }
  for (int h = 0; h < kH; ++h) c[h] = weigh(p[h], tile.t, args.softcap, &states[h].m, &states[h].l);
}

template <int kH>
void add_pair_values(const AttendArgs& args, const Tile& tile, const float (*p)[kAttentionTile], const float* c,
                     float* const* out) {
  constexpr int kV = kH == 1 ? 16 : kH == 2 ? 8 : 4;  // registers of a value at once
  int64_t d = 0;
  for (; d + 4 * kV <= args.head_dim_v; d += 4 * kV) add_values_at<kH, kV>(tile, p, c, d, out);
  for (; d + 4 <= args.head_dim_v; d += 4) add_values_at<kH, 1>(tile, p, c, d, out);
  for (; d < args.head_dim_v; ++d) {
    for (int h = 0; h < kH; ++h) {
      float* at = out[h] + d;
      *at = add_value(tile, p[h], c[h], d, *at);
    }
  }
}

struct Neon {
  // out has room for whole blocks of 32.
  static void decode_row(DType dtype, const std::byte* row, int64_t n, float* out) {
    if (dtype == DType::kF16) {
      for (int64_t i = 0; i < n; i += 4) {
        uint16_t half[4] = {};
        std::memcpy(half, row + 2 * i, static_cast<size_t>(n - i < 4 ? n - i : 4) * 2);
        vst1q_f32(out + i, from_halves(vld1_u16(half)));
      }
      return;
    }
    for (int64_t i = 0; i < n; i += 32) {
      const auto* block = reinterpret_cast<const BlockQ8_0*>(row) + i / 32;
      const float scale = half_to_float(block->d);
      for (int e = 0; e < 32; e += 8) {
        const int16x8_t q = vmovl_s8(vld1_s8(block->qs + e));
        vst1q_f32(out + i + e, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))), scale));
        vst1q_f32(out + i + e + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(q))), scale));
      }
    }
  }

  static void weigh_keys(const AttendArgs& args, const Tile& tile, const float* const* q, int64_t n,
                         RunningSoftmax* states, float (*p)[kAttentionTile], float* c) {
    in_groups<kHeads>(n, [&]<int kN>(int64_t h) { weigh_pairs<kN>(args, tile, q + h, states + h, p + h, c + h); });
  }

  static void add_values(const AttendArgs& args, const Tile& tile, const float (*p)[kAttentionTile], const float* c,
                         int64_t n, float* const* out) {
    in_groups<kHeads>(n, [&]<int kN>(int64_t h) { add_pair_values<kN>(args, tile, p + h, c + h, out + h); });
  }
};

}  // namespace

void attend(const AttendArgs* rows, int64_t n_rows) { walk_attention<Neon>(rows, n_rows); }

}  // namespace expertree::neon

#endif
