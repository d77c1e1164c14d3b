// Attention of query rows (canonical.h, C8), for all heads that share a KV head: heads and rows walk the cells together,
// so that a tile of keys and values is read from memory once and from L1 for the rest.
#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"
#include "cpp/kernels/canonical.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kHeadGroup = 8;  // heads that walk together
constexpr int kRowGroup = 8;  // rows that walk together: their outputs, 32 KiB at 8 heads of 128, stay near

// The cells of a tile's t positions; the rest of the tile repeats the last one.
struct Tile {
  int64_t t;
  const float* k[kAttentionTile];
  const float* v[kAttentionTile];
};

Tile tile_at(const AttendArgs& args, int64_t begin) {
  Tile tile;
  tile.t = min_of<int64_t>(kAttentionTile, args.n_prefix + args.n_tail - begin);
  for (int64_t j = 0; j < kAttentionTile; ++j) {
    const int64_t position = begin + min_of(j, tile.t - 1);
    const int64_t cell = position < args.n_prefix ? position : args.tail[position - args.n_prefix];
    tile.k[j] = args.k + cell * args.head_dim_k;
    tile.v[j] = args.v + cell * args.v_stride;
  }
  return tile;
}

// s[h][j] = dot16(q of head h, key j) for kHeads heads and a whole tile: 16 accumulators, kHeads x (16 / kHeads) keys.
template <int kHeads>
void scores(const float* q, int64_t q_stride, const Tile& tile, int64_t dim, float (*s)[kAttentionTile]) {
  constexpr int kKeys = 16 / kHeads;
  for (int64_t j0 = 0; j0 < tile.t; j0 += kKeys) {
    __m512 acc[16];  // [h][key]
    for (__m512& a : acc) a = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) {
      __m512 q_part[kHeads];
      for (int h = 0; h < kHeads; ++h) q_part[h] = _mm512_loadu_ps(q + h * q_stride + i);
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        const __m512 key = _mm512_loadu_ps(tile.k[j0 + j] + i);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
          acc[h * kKeys + j] = _mm512_fmadd_ps(q_part[h], key, acc[h * kKeys + j]);
        }
      }
    }
    if (i < dim) {
      const __mmask16 mask = first_lanes(dim - i);
      for (int h = 0; h < kHeads; ++h) {
        const __m512 q_part = _mm512_maskz_loadu_ps(mask, q + h * q_stride + i);
#pragma GCC unroll 16
        for (int j = 0; j < kKeys; ++j) {
          const __m512 key = _mm512_maskz_loadu_ps(mask, tile.k[j0 + j] + i);
          acc[h * kKeys + j] = _mm512_mask3_fmadd_ps(q_part, key, acc[h * kKeys + j], mask);
        }
      }
    }
    alignas(64) float dots[16];
    _mm512_store_ps(dots, combine_lanes_16(acc));
    for (int h = 0; h < kHeads; ++h) std::memcpy(s[h] + j0, dots + h * kKeys, kKeys * sizeof(float));
  }
}

// Running maximum and sum of one head.
struct Softmax {
  float m = -kInfinity;
  float l = 0.0f;
};

// Turns the scores s [32] of one tile into weights p, updates m and l, and returns the factor c of what came before.
float tile_softmax(float* s, int64_t t, float scale, float softcap, Softmax* state) {
  const __mmask16 low = first_lanes(t);
  const __mmask16 high = first_lanes(t > 16 ? t - 16 : 0);
  __m512 s0 = _mm512_mul_ps(_mm512_maskz_loadu_ps(low, s), set1(scale));
  __m512 s1 = _mm512_mul_ps(_mm512_maskz_loadu_ps(high, s + 16), set1(scale));
  if (softcap > 0.0f) {
    s0 = softcap_16(s0, softcap);
    s1 = softcap_16(s1, softcap);
  }
  __m512 largest = set1(state->m);
  largest = _mm512_mask_max_ps(largest, low, s0, largest);  // keeps `largest` where a score is NaN
  largest = _mm512_mask_max_ps(largest, high, s1, largest);
  const float m2 = max_lane(largest);
  const float c = _mm512_cvtss_f32(exp_16(set1(state->m - m2)));
  const __m512 p0 = _mm512_maskz_mov_ps(low, exp_16(_mm512_sub_ps(s0, set1(m2))));
  const __m512 p1 = _mm512_maskz_mov_ps(high, exp_16(_mm512_sub_ps(s1, set1(m2))));
  _mm512_storeu_ps(s, p0);
  _mm512_storeu_ps(s + 16, p1);
  // A weight is never negative, so that adding +0 leaves a lane without a position as it is.
  state->l = __builtin_fmaf(state->l, c, combine_lanes(_mm512_add_ps(p0, p1)));
  state->m = m2;
  return c;
}

// out[h][d] = out[h][d] * c[h], then fma(p[h][j], v[j][d], .) for j = 0 .. t-1, for kHeads heads and kVectors * 16 values
// of d from `out` and `offset` on.
template <int kHeads, int kVectors>
inline void add_values(const Tile& tile, const float (*p)[kAttentionTile], const float* c, int64_t offset,
                       __mmask16 mask, float* out, int64_t out_stride) {
  __m512 acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) {
      const __m512 before = _mm512_maskz_loadu_ps(mask, out + h * out_stride + offset + 16 * i);
      acc[h][i] = _mm512_mul_ps(before, set1(c[h]));
    }
  }
  for (int64_t j = 0; j < tile.t; ++j) {
    __m512 value[kVectors];
    for (int i = 0; i < kVectors; ++i) value[i] = _mm512_maskz_loadu_ps(mask, tile.v[j] + offset + 16 * i);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const __m512 weight = set1(p[h][j]);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) acc[h][i] = _mm512_fmadd_ps(weight, value[i], acc[h][i]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) {
      _mm512_mask_storeu_ps(out + h * out_stride + offset + 16 * i, mask, acc[h][i]);
    }
  }
}

// One tile for kHeads heads, of which `first` is the first.
template <int kHeads>
void attend_tile(const AttendArgs& args, const Tile& tile, int64_t first, Softmax* states) {
  alignas(64) float p[kHeads][kAttentionTile];
  float c[kHeads];
  scores<kHeads>(args.q + first * args.q_stride, args.q_stride, tile, args.head_dim_k, p);
  for (int h = 0; h < kHeads; ++h) c[h] = tile_softmax(p[h], tile.t, args.scale, args.softcap, states + h);
  float* out = args.out + first * args.out_stride;
  int64_t d = 0;
  for (; d + 64 <= args.head_dim_v; d += 64) add_values<kHeads, 4>(tile, p, c, d, 0xffff, out, args.out_stride);
  for (; d < args.head_dim_v; d += 16) {
    add_values<kHeads, 1>(tile, p, c, d, first_lanes(args.head_dim_v - d), out, args.out_stride);
  }
}

// Positions seen.
int64_t n_positions(const AttendArgs& args) { return args.n_prefix + args.n_tail - args.first; }

// Heads first .. first + n_heads - 1 of up to kRowGroup rows.
void attend_group(const AttendArgs* rows, int64_t n_rows, int64_t first, int64_t n_heads) {
  Softmax states[kRowGroup][kHeadGroup];
  int64_t longest = 0;
  for (int64_t r = 0; r < n_rows; ++r) {
    longest = max_of(longest, n_positions(rows[r]));
    for (int64_t h = 0; h < n_heads; ++h) {
      float* out = rows[r].out + (first + h) * rows[r].out_stride;
      for (int64_t d = 0; d < rows[r].head_dim_v; ++d) out[d] = 0.0f;
      if (rows[r].sinks) states[r][h] = {rows[r].sinks[first + h], 1.0f};
    }
  }
  for (int64_t begin = 0; begin < longest; begin += kAttentionTile) {
    for (int64_t r = 0; r < n_rows; ++r) {
      if (begin >= n_positions(rows[r])) continue;
      const Tile tile = tile_at(rows[r], rows[r].first + begin);
      int64_t h = 0;
      for (; h + 4 <= n_heads; h += 4) attend_tile<4>(rows[r], tile, first + h, states[r] + h);
      for (; h + 2 <= n_heads; h += 2) attend_tile<2>(rows[r], tile, first + h, states[r] + h);
      if (h < n_heads) attend_tile<1>(rows[r], tile, first + h, states[r] + h);
    }
  }
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t h = 0; h < n_heads; ++h) {
      float* out = rows[r].out + (first + h) * rows[r].out_stride;
      const float inverse = 1.0f / states[r][h].l;
      for (int64_t d = 0; d < rows[r].head_dim_v; ++d) out[d] = out[d] * inverse;
    }
  }
}

}  // namespace

void attend(const AttendArgs* rows, int64_t n_rows) {
  for (int64_t r = 0; r < n_rows; r += kRowGroup) {
    for (int64_t h = 0; h < rows[r].n_heads; h += kHeadGroup) {
      attend_group(rows + r, min_of<int64_t>(kRowGroup, n_rows - r), h,
                   min_of<int64_t>(kHeadGroup, rows[r].n_heads - h));
    }
  }
}

}  // namespace expertree::avx512

#endif
