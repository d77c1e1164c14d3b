// Products of 256-element formats with few columns (stream.h).
#pragma once

#include "cpp/kernels/avx512/stream.h"
#include "cpp/tensor/blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// Streams of the formats whose sums of two or four products fit in 16 bits. Self::arrange puts a block's activations in the
// order of Self::unpack's bytes; Self::scales gives, for four blocks, 16 bytes each that Self::scale_of spreads.
template <typename Self, typename Block>
struct Stream256 {
  static constexpr int kElements = 256;
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int kChunkBlocks = 16;

  using Weights = __m512i[4];
  static inline __m512i times(const Weights& w, int j, __m512i x) {  // sums of four, one per dword
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[j], x);
  }

  template <int kColumns>
  struct Chunk {
    alignas(64) int8_t q[kColumns][kChunkBlocks * 256];
    alignas(64) int32_t sums[kColumns][kPanelRows][kChunkBlocks];
    const int16_t* sums16[kColumns];
    const float* d[kColumns];

    void prepare(const StreamColumn* columns, int64_t b, int n) {
      for (int c = 0; c < kColumns; ++c) {
        for (int i = 0; i < n; ++i) Self::arrange(columns[c].q + (b + i) * 256, q[c] + i * 256);
        sums16[c] = columns[c].sums16 + b * 16;
        d[c] = columns[c].d + b;
      }
    }

    inline __attribute__((always_inline)) void add_row(const std::byte* group, int64_t stride, int r, int n,
                                                       const Ahead& ahead) {
      const std::byte* p = group + r * stride;
      for (int b = 0; b < n; b += 4) {
        const int last = min_of(4, n - b) - 1;
        __m512i part[kColumns][4];
        alignas(64) uint8_t scales[4][16];
        const std::byte* block = p + b * kBytes;
        Self::scales(block, block + min_of(1, last) * kBytes, block + min_of(2, last) * kBytes, block + last * kBytes,
                     scales);
        ahead.reading(block - group, 4 * kBytes);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          if (i > last) {
            for (int c = 0; c < kColumns; ++c) part[c][i] = _mm512_setzero_si512();
            continue;
          }
          typename Self::Weights w;
          Self::unpack(block + i * kBytes, w);
          const auto scale = Self::spread(scales[i]);
          for (int c = 0; c < kColumns; ++c) {
            const int8_t* x = q[c] + (b + i) * 256;
            __m512i total = Self::start(scale, sums16[c] + (b + i) * 16);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
              const __m512i sum = Self::times(w, j, _mm512_load_si512(x + 64 * j));
              total = _mm512_dpwssd_epi32(total, sum, scale.v[j]);
            }
            part[c][i] = total;
          }
        }
        for (int c = 0; c < kColumns; ++c) {
          const __m128i all = sum_lanes(part[c][0], part[c][1], part[c][2], part[c][3]);
          _mm_store_si128(reinterpret_cast<__m128i*>(sums[c][r] + b), all);
        }
      }
    }

    void finish(const std::byte* p, int64_t stride, int n, const Ahead& ahead, __m512 (&acc)[kColumns]) const {
      for (int b = 0; b < n; b += 4) {
        __m512i s[kColumns][4];
        for (int c = 0; c < kColumns; ++c) {
          load_rows(reinterpret_cast<const std::byte*>(sums[c][0] + b), sizeof(sums[c][0]), s[c]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          if (b + i >= n) break;
          ahead.finishing((b + i) * kPanelRows * kBytes, kPanelRows * kBytes);
          const auto rest = Self::rest(p + (b + i) * kBytes, stride);
#pragma GCC unroll 4
          for (int c = 0; c < kColumns; ++c) {
            const __m512 dx = set1(d[c][b + i]);
            acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[c][i]), _mm512_mul_ps(rest.d, dx), acc[c]);
            acc[c] = rest.subtract_min(sums16[c] + (b + i) * 16, dx, acc[c]);
          }
        }
      }
    }
  };
};

// Four multipliers as (int16, 0), for vpdpwssd.
struct SpreadScales {
  __m512i v[4];
};

// d, dmin and, for each pair of sums16, the minimums as two int16, of 16 rows.
struct MinRest {
  __m512 d;
  __m512 dmin;
  __m512i min[8];

  inline __m512 subtract_min(const int16_t* sums16, __m512 dx, __m512 acc) const {
    __m512i m = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) m = _mm512_dpwssd_epi32(m, min[i], _mm512_set1_epi32(load_i32(sums16 + 2 * i)));
    return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(m), _mm512_mul_ps(dmin, dx), acc);
  }
};

// Of formats without minimums: d of 16 rows.
struct PlainRest {
  __m512 d;
  inline __m512 subtract_min(const int16_t*, __m512, __m512 acc) const { return acc; }
};

// From a half at p.
inline PlainRest rest_of_half(const std::byte* p, int64_t stride) {
  alignas(32) uint16_t halves[kPanelRows];
  copy_from_rows(p, stride, halves);
  return {_mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)))};
}

// Sixteen signed scales, spread as (int16, 0), and what the offset of unsigned weights takes away.
struct SignedScales {
  __m512i v[4];
  __m256i times_offset;  // int16, -offset * scale

  inline __m512i start(const int16_t* sums16) const {
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums16));
    return _mm512_zextsi256_si512(_mm256_madd_epi16(times_offset, sums));
  }
};

// scales: int8 [16]. Lane L of v[j] gets scale L of `lanes` (bytes) plus `step` * j.
inline SignedScales spread_signed(const uint8_t* scales, int offset, uint32_t lanes, int step) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
  SignedScales out;
  out.times_offset = _mm256_mullo_epi16(wide, _mm256_set1_epi16(static_cast<int16_t>(-offset)));
  const __m512i each = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(lanes)),
                                                             _mm_set_epi32(0x03030303, 0x02020202, 0x01010101, 0)));
  const __m512i first =
      _mm512_add_epi32(_mm512_mullo_epi32(each, _mm512_set1_epi32(0x0202)), _mm512_set1_epi32(0x0100));
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i index = _mm512_add_epi8(first, _mm512_set1_epi32(0x0202 * step * j));
    out.v[j] = _mm512_maskz_permutexvar_epi8(0x3333333333333333, index, _mm512_castsi256_si512(wide));
  }
  return out;
}

}  // namespace
}  // namespace expertree::avx512

#endif
