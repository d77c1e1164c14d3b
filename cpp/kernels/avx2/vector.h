// What the AVX2 kernels share: 16 lanes in two registers, tails, integer reductions, access to rows.
// Everything is static and only plain structs cross functions, so no object exports a weak symbol (canonical.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpp/kernels/row_walk.h"

namespace expertree::avx2 {

constexpr int kRows = 8;  // weight rows that advance together: one float accumulator lane per row

static const int32_t kTailMasks[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

// The first n of 8 lanes; n is clamped to 0 .. 8.
static inline __m256i tail_mask(int64_t n) {
  const int64_t kept = n < 0 ? 0 : n > 8 ? 8 : n;
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kTailMasks + 8 - kept));
}

static inline __m256 select(__m256i mask, __m256 yes, __m256 no) {
  return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask));
}

static inline __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// canonical.h, C1: lanes 0-7 in low, 8-15 in high.
static inline float combine(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline float max_of(__m256 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Lane i of the result is the sum of p[i]'s eight lanes.
static inline __m256i sum_eight(const __m256i* p) {
  const __m256i p01 = _mm256_hadd_epi32(p[0], p[1]);
  const __m256i p23 = _mm256_hadd_epi32(p[2], p[3]);
  const __m256i p45 = _mm256_hadd_epi32(p[4], p[5]);
  const __m256i p67 = _mm256_hadd_epi32(p[6], p[7]);
  const __m256i p0123 = _mm256_hadd_epi32(p01, p23);  // low half: elements 0-3 of each, high half: elements 4-7
  const __m256i p4567 = _mm256_hadd_epi32(p45, p67);
  return _mm256_add_epi32(_mm256_blend_epi32(p0123, p4567, 0xF0), _mm256_permute2x128_si256(p0123, p4567, 0x21));
}

// v[r]: the 8 dwords of row r. out[t]: dword t of every row.
static inline void transpose_dwords(const __m256i (&v)[kRows], __m256i (&out)[kRows]) {
  __m256i pairs[kRows];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  __m256i fours[2][4];  // [rows 0-3, rows 4-7][t]: dword t of four rows, and above it dword t + 4
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i* const p = pairs + 4 * half;
    fours[half][0] = _mm256_unpacklo_epi64(p[0], p[2]);
    fours[half][1] = _mm256_unpackhi_epi64(p[0], p[2]);
    fours[half][2] = _mm256_unpacklo_epi64(p[1], p[3]);
    fours[half][3] = _mm256_unpackhi_epi64(p[1], p[3]);
  }
#pragma GCC unroll 4
  for (int t = 0; t < 4; ++t) {
    out[t] = _mm256_permute2x128_si256(fours[0][t], fours[1][t], 0x20);
    out[t + 4] = _mm256_permute2x128_si256(fours[0][t], fours[1][t], 0x31);
  }
}

using RowGroup = WalkRows<kRows>;
using Column = WalkColumn;

static inline RowGroup row_group(const MatmulArgs& args, int64_t row) { return walk_rows<kRows>(args, row); }

// The binary16 at `p + offset[i]` of each row.
static inline __m256 load_halves(const std::byte* p, const int64_t* offset) {
  int16_t half[kRows];
  for (int i = 0; i < kRows; ++i) std::memcpy(&half[i], p + offset[i], 2);
  return _mm256_cvtph_ps(_mm_setr_epi16(half[0], half[1], half[2], half[3], half[4], half[5], half[6], half[7]));
}

static inline void store_rows(float* y, int64_t n_rows, __m256 value) {
  if (n_rows >= kRows) {
    _mm256_storeu_ps(y, value);
  } else {
    _mm256_maskstore_ps(y, tail_mask(n_rows), value);
  }
}

template <typename Kernel>
static inline void for_each_group(const MatmulArgs& args) {
  walk_groups<Kernel, kRows>(args);
}

}  // namespace expertree::avx2
