// Attention of query rows (canonical.h, C8), AVX2. Up to four pairs of a row and a head ("heads" below) share each load of a
// key or a value.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/attention_walk.h"
#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/math.h"
#include "cpp/kernels/avx2/vector.h"
#include "cpp/kernels/canonical.h"
#include "cpp/tensor/blocks.h"

namespace expertree::avx2 {
namespace {

constexpr int kHeads = 4;
static_assert(kAttentionTile == 32, "a tile of scores is four registers");

// Eight elements of a row in cells from i, a multiple of eight, on.
inline __m256 load_8(DType dtype, const std::byte* row, int64_t i, int64_t n) {
  if (dtype == DType::kF16) {
    uint16_t halves[8] = {};
    const std::byte* from = row + 2 * i;
    if (n - i < 8) std::memcpy(halves, from, static_cast<size_t>(n - i) * 2);
    return _mm256_cvtph_ps(load_128(n - i < 8 ? static_cast<const void*>(halves) : from));
  }
  const std::byte* block = row + i / 32 * static_cast<int64_t>(sizeof(BlockQ8_0));
  int16_t d;
  std::memcpy(&d, block, 2);
  const __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16(d));
  int64_t q;
  std::memcpy(&q, block + 2 + i % 32, 8);
  return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(q))));
}

// s[h][j .. j + kP) = dot16(q of head h, k of those positions) * scale.
template <int kH, int kP>
inline void scores(const float* const* q, const Tile& tile, int64_t j, int64_t dim, float scale,
                   float (*s)[kAttentionTile]) {
  const float* k[kP];
  for (int p = 0; p < kP; ++p) k[p] = tile.k[j + p];
  __m256 low[kH][kP];
  __m256 high[kH][kP];
  for (int h = 0; h < kH; ++h) {
    for (int p = 0; p < kP; ++p) low[h][p] = high[h][p] = _mm256_setzero_ps();
  }
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) {
      const __m256 k0 = _mm256_loadu_ps(k[p] + i);
      const __m256 k1 = _mm256_loadu_ps(k[p] + i + 8);
#pragma GCC unroll 4
      for (int h = 0; h < kH; ++h) {
        low[h][p] = _mm256_fmadd_ps(_mm256_loadu_ps(q[h] + i), k0, low[h][p]);
        high[h][p] = _mm256_fmadd_ps(_mm256_loadu_ps(q[h] + i + 8), k1, high[h][p]);
      }
    }
  }
  if (i < dim) {
    const __m256i m0 = tail_mask(dim - i);
    const __m256i m1 = tail_mask(dim - i - 8);
    for (int p = 0; p < kP; ++p) {
      const __m256 k0 = _mm256_maskload_ps(k[p] + i, m0);
      const __m256 k1 = _mm256_maskload_ps(k[p] + i + 8, m1);
      for (int h = 0; h < kH; ++h) {
        const __m256 q0 = _mm256_maskload_ps(q[h] + i, m0);
        const __m256 q1 = _mm256_maskload_ps(q[h] + i + 8, m1);
        low[h][p] = select(m0, _mm256_fmadd_ps(q0, k0, low[h][p]), low[h][p]);
        high[h][p] = select(m1, _mm256_fmadd_ps(q1, k1, high[h][p]), high[h][p]);
      }
    }
  }
  for (int p = 0; p < kP && j + p < tile.t; ++p) {
    for (int h = 0; h < kH; ++h) s[h][j + p] = combine(low[h][p], high[h][p]) * scale;
  }
}

// One head's scores become its p; updates m and l, returns c.
inline float weigh(float* s, int64_t n, float softcap, float* m, float* l) {
  __m256 top = _mm256_set1_ps(*m);
  __m256 score[kAttentionTile / 8];
#pragma GCC unroll 4
  for (int i = 0; i < kAttentionTile / 8; ++i) {
    const __m256i mask = tail_mask(n - 8 * i);
    score[i] = _mm256_maskload_ps(s + 8 * i, mask);
    if (softcap > 0.0f) score[i] = softcap_lanes(score[i], softcap);
    top = select(mask, _mm256_max_ps(score[i], top), top);  // a NaN score leaves top
  }
  const float m2 = max_of(top);
  const float c = _mm256_cvtss_f32(exp_lanes(_mm256_set1_ps(*m - m2)));
  const __m256 max = _mm256_set1_ps(m2);
  __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
#pragma GCC unroll 4
  for (int i = 0; i < kAttentionTile / 8; ++i) {
    const __m256i mask = tail_mask(n - 8 * i);
    const __m256 p = exp_lanes(_mm256_sub_ps(score[i], max));
    sum[i % 2] = select(mask, _mm256_add_ps(sum[i % 2], p), sum[i % 2]);
    _mm256_maskstore_ps(s + 8 * i, mask, p);
  }
  *l = __builtin_fmaf(*l, c, combine(sum[0], sum[1]));
  *m = m2;
  return c;
}

// acc[h][d] = acc * c, then fma(p[j], v[j][d], acc) in increasing j, for kV registers of d. The last ones may be cut.
template <int kH, int kV, bool kCut>
inline void add_values_at(const Tile& tile, const float (*p)[kAttentionTile], const float* c, int64_t d, int64_t dim,
                          float* const* out) {
  __m256 acc[kH][kV];
  for (int h = 0; h < kH; ++h) {
    for (int i = 0; i < kV; ++i) {
      float* at = out[h] + d + 8 * i;
      const __m256 old = kCut ? _mm256_maskload_ps(at, tail_mask(dim - d - 8 * i)) : _mm256_loadu_ps(at);
      acc[h][i] = _mm256_mul_ps(old, _mm256_set1_ps(c[h]));
    }
  }
  for (int64_t j = 0; j < tile.t; ++j) {
    const float* v = tile.v[j] + d;
#pragma GCC unroll 8
    for (int i = 0; i < kV; ++i) {
      const __m256 value =
          kCut ? _mm256_maskload_ps(v + 8 * i, tail_mask(dim - d - 8 * i)) : _mm256_loadu_ps(v + 8 * i);
#pragma GCC unroll 4
      for (int h = 0; h < kH; ++h) acc[h][i] = _mm256_fmadd_ps(_mm256_set1_ps(p[h][j]), value, acc[h][i]);
    }
  }
  for (int h = 0; h < kH; ++h) {
    for (int i = 0; i < kV; ++i) {
      float* at = out[h] + d + 8 * i;
      if (kCut) {
        _mm256_maskstore_ps(at, tail_mask(dim - d - 8 * i), acc[h][i]);
      } else {
        _mm256_storeu_ps(at, acc[h][i]);
      }
    }
  }
}

template <int kH>
void weigh_pairs(const AttendArgs& args, const Tile& tile, const float* const* q, RunningSoftmax* states,
                 float (*p)[kAttentionTile], float* c) {
  constexpr int kP = kH == 1 ? 4 : kH == 2 ? 2 : 1;  // positions at once in the scores: about eight chains
  for (int64_t j = 0; j < tile.t; j += kP) {
    scores<kH, kP>(q, tile, j, args.head_dim_k, args.scale, p);
  }
  for (int h = 0; h < kH; ++h) c[h] = weigh(p[h], tile.t, args.softcap, &states[h].m, &states[h].l);
}

template <int kH>
void add_pair_values(const AttendArgs& args, const Tile& tile, const float (*p)[kAttentionTile], const float* c,
                     float* const* out) {
  constexpr int kV = kH == 1 ? 8 : kH == 2 ? 4 : 2;  // registers of a value at once
  int64_t d = 0;
  for (; d + 8 * kV <= args.head_dim_v; d += 8 * kV) {
    add_values_at<kH, kV, false>(tile, p, c, d, args.head_dim_v, out);
  }
  if (d < args.head_dim_v) add_values_at<kH, kV, true>(tile, p, c, d, args.head_dim_v, out);
}

struct Avx2 {
  static void decode_row(DType dtype, const std::byte* row, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, load_8(dtype, row, i, n));
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

void attend(const AttendArgs* rows, int64_t n_rows) { walk_attention<Avx2>(rows, n_rows); }

}  // namespace expertree::avx2

#endif
