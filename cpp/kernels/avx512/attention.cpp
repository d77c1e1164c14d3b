// Attention of query rows (canonical.h, C8), for all heads that share a KV head. Four pairs of a row and a head ("heads"
// below) share each load of a key or a value.
#include "cpp/kernels/attention_walk.h"
#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"
#include "cpp/kernels/canonical.h"
#include "cpp/tensor/blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// 16 elements of a row in cells, or the first ones of them.
inline __m512 load_16(DType dtype, const std::byte* row, int64_t i, __mmask16 mask) {
  if (dtype == DType::kF16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + 2 * i));
  const std::byte* block = row + i / 32 * static_cast<int64_t>(sizeof(BlockQ8_0));
  int16_t d;
  std::memcpy(&d, block, 2);
  const __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16(d));
  const __m512i q = _mm512_cvtepi8_epi32(load_16_bytes(block + 2 + i % 32));
  return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(q));
}

// s[h][j] = dot16(q of head h, key j) for kHeads heads and a whole tile: 16 accumulators, kHeads x (16 / kHeads) keys.
template <int kHeads>
void scores(const float* const* q, const Tile& tile, int64_t dim, float (*s)[kAttentionTile]) {
  constexpr int kKeys = 16 / kHeads;
  for (int64_t j0 = 0; j0 < tile.t; j0 += kKeys) {
    __m512 acc[16];  // [h][key]
    for (__m512& a : acc) a = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) {
      __m512 q_part[kHeads];
      for (int h = 0; h < kHeads; ++h) q_part[h] = _mm512_loadu_ps(q[h] + i);
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
        const __m512 q_part = _mm512_maskz_loadu_ps(mask, q[h] + i);
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

// Turns the scores s [kHeads][32] of one tile into weights p, updates m and l, and gives the factors c of what came before.
template <int kHeads>
void tile_softmax(float (*s)[kAttentionTile], int64_t t, float scale, float softcap, RunningSoftmax* states, float* c) {
  const __mmask16 low = first_lanes(t);
  const __mmask16 high = first_lanes(t > 16 ? t - 16 : 0);
  alignas(64) float before[16] = {};
  alignas(64) float after[16] = {};
  __m512 s0[kHeads];
  __m512 s1[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    s0[h] = _mm512_mul_ps(_mm512_maskz_loadu_ps(low, s[h]), set1(scale));
    s1[h] = _mm512_mul_ps(_mm512_maskz_loadu_ps(high, s[h] + 16), set1(scale));
    if (softcap > 0.0f) {
      s0[h] = softcap_16(s0[h], softcap);
      s1[h] = softcap_16(s1[h], softcap);
    }
    before[h] = states[h].m;
    __m512 largest = set1(before[h]);
    largest = _mm512_mask_max_ps(largest, low, s0[h], largest);  // keeps `largest` where a score is NaN
    largest = _mm512_mask_max_ps(largest, high, s1[h], largest);
    after[h] = max_lane(largest);
  }
  alignas(64) float factor[16];
  _mm512_store_ps(factor, exp_16(_mm512_sub_ps(_mm512_load_ps(before), _mm512_load_ps(after))));
  for (int h = 0; h < kHeads; ++h) {
    const __m512 p0 = _mm512_maskz_mov_ps(low, exp_16(_mm512_sub_ps(s0[h], set1(after[h]))));
    const __m512 p1 = _mm512_maskz_mov_ps(high, exp_16(_mm512_sub_ps(s1[h], set1(after[h]))));
    _mm512_storeu_ps(s[h], p0);
    _mm512_storeu_ps(s[h] + 16, p1);
    // A weight is never negative, so that adding +0 leaves a lane without a position as it is.
    states[h].l = __builtin_fmaf(states[h].l, factor[h], combine_lanes(_mm512_add_ps(p0, p1)));
    states[h].m = after[h];
    c[h] = factor[h];
  }
}

// out[h][d] = out[h][d] * c[h], then fma(p[h][j], v[j][d], .) for j = 0 .. t-1, for kHeads heads and kVectors * 16 values
// of d from `offset` on. kCut: some of them do not exist (a load under a mask takes a port that the products need).
template <int kHeads, int kVectors, bool kCut>
inline void add_values(const Tile& tile, const float (*p)[kAttentionTile], const float* c, int64_t offset,
                       __mmask16 mask, float* const* out) {
  const auto load = [mask](const float* x) { return kCut ? _mm512_maskz_loadu_ps(mask, x) : _mm512_loadu_ps(x); };
  __m512 acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) acc[h][i] = _mm512_mul_ps(load(out[h] + offset + 16 * i), set1(c[h]));
  }
  for (int64_t j = 0; j < tile.t; ++j) {
    __m512 value[kVectors];
    for (int i = 0; i < kVectors; ++i) value[i] = load(tile.v[j] + offset + 16 * i);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const __m512 weight = set1(p[h][j]);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) acc[h][i] = _mm512_fmadd_ps(weight, value[i], acc[h][i]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) {
      float* at = out[h] + offset + 16 * i;
      if (kCut) {
        _mm512_mask_storeu_ps(at, mask, acc[h][i]);
      } else {
        _mm512_storeu_ps(at, acc[h][i]);
      }
    }
  }
}

// Scores and weights of one tile for kHeads pairs of a row and a head.
template <int kHeads>
void weigh_pairs(const AttendArgs& args, const Tile& tile, const float* const* q, RunningSoftmax* states,
                 float (*p)[kAttentionTile], float* c) {
  scores<kHeads>(q, tile, args.head_dim_k, p);
  tile_softmax<kHeads>(p, tile.t, args.scale, args.softcap, states, c);
}

template <int kHeads>
void add_pair_values(const AttendArgs& args, const Tile& tile, const float (*p)[kAttentionTile], const float* c,
                     float* const* out) {
  int64_t d = 0;
  for (; d + 64 <= args.head_dim_v; d += 64) add_values<kHeads, 4, false>(tile, p, c, d, 0xffff, out);
  for (; d + 16 <= args.head_dim_v; d += 16) add_values<kHeads, 1, false>(tile, p, c, d, 0xffff, out);
  if (d < args.head_dim_v) {
    add_values<kHeads, 1, true>(tile, p, c, d, first_lanes(args.head_dim_v - d), out);
  }
}

struct Avx512 {
  static void decode_row(DType dtype, const std::byte* row, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += 16) _mm512_storeu_ps(out + i, load_16(dtype, row, i, first_lanes(n - i)));
  }

  static void weigh_keys(const AttendArgs& args, const Tile& tile, const float* const* q, int64_t n,
                         RunningSoftmax* states, float (*p)[kAttentionTile], float* c) {
    int64_t h = 0;
    for (; h + 4 <= n; h += 4) weigh_pairs<4>(args, tile, q + h, states + h, p + h, c + h);
    for (; h + 2 <= n; h += 2) weigh_pairs<2>(args, tile, q + h, states + h, p + h, c + h);
    if (h < n) weigh_pairs<1>(args, tile, q + h, states + h, p + h, c + h);
  }

  static void add_values(const AttendArgs& args, const Tile& tile, const float (*p)[kAttentionTile], const float* c,
                         int64_t n, float* const* out) {
    int64_t h = 0;
    for (; h + 4 <= n; h += 4) add_pair_values<4>(args, tile, p + h, c + h, out + h);
    for (; h + 2 <= n; h += 2) add_pair_values<2>(args, tile, p + h, c + h, out + h);
    if (h < n) add_pair_values<1>(args, tile, p + h, c + h, out + h);
  }
};

}  // namespace

void attend(const AttendArgs* rows, int64_t n_rows) { walk_attention<Avx512>(rows, n_rows); }

}  // namespace expertree::avx512

#endif
