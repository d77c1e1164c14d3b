// Formats of 256 elements with many columns (panel.h), from what kernel_q256.h reads of one row.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernel_q256.h"
#include "cpp/kernels/avx2/panel.h"

namespace expertree::avx2 {
namespace {

// Sixteen int16: the scale of every 16 elements.
inline __m256i scales_of_16(const Scales16& s) { return _mm256_permute2x128_si256(s.low, s.high, 0x20); }
inline __m256i scales_of_16(const Scales8& s) {
  const __m128i eight = _mm256_castsi256_si128(s.both);
  return _mm256_set_m128i(_mm_unpackhi_epi16(eight, eight), _mm_unpacklo_epi16(eight, eight));
}

inline __m256i twice_low_half(__m256i v) {  // of each dword
  return _mm256_blend_epi16(v, _mm256_slli_epi32(v, 16), 0xaa);
}
inline __m256i twice_high_half(__m256i v) { return _mm256_blend_epi16(v, _mm256_srli_epi32(v, 16), 0x55); }

template <typename Format>
struct Panel256 {
  using Block = typename Format::Block;
  static constexpr int kElements = 256;
  static constexpr int kFewColumns = 4;  // more are worth an expanded panel
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int kSubBlock = sizeof(Format::scales) == sizeof(Scales16) ? 16 : 32;
  static constexpr bool kSigned = Format::kWeights != Weights::kUnsigned;
  static constexpr bool kMeetsSums = Format::kHasMin || Format::kOffsetShift >= 0;
  static constexpr int kSteps = steps_that_fit(Format::kMaxStored, kSubBlock / 4);
  static_assert(2 * Format::kMaxStored * 127 <= INT16_MAX);
  static_assert(!(Format::kHasMin && Format::kOffsetShift >= 0), "only one of them meets the sums");

  struct Panel {
    alignas(32) PanelBytes w;
    alignas(32) int32_t scale[256 / kSubBlock][kRows];  // twice the same int16
    alignas(32) int32_t pair[8][kRows];  // two int16 that meet neighbouring sums of 16 activations: minimums or scales
    alignas(32) float d[kRows];
    alignas(32) float dmin[kRows];
  };

  static void expand(const std::byte* p, const int64_t* offset, int, Panel* panel, Pace* pace) {
    alignas(32) uint8_t bytes[8][kRows][32];  // of 32 elements
    __m256i scales[kRows];
    __m256i mins[kRows];
    for (int i = 0; i < kRows; ++i) {
      const Format block = Format::open(reinterpret_cast<const Block*>(p + offset[i]));
      scales[i] = scales_of_16(block.scales);
      if constexpr (Format::kHasMin) mins[i] = block.mins16;
      store_256(bytes[0][i], chunk_bytes<0>(block));
      store_256(bytes[1][i], chunk_bytes<1>(block));
      store_256(bytes[2][i], chunk_bytes<2>(block));
      store_256(bytes[3][i], chunk_bytes<3>(block));
      store_256(bytes[4][i], chunk_bytes<4>(block));
      store_256(bytes[5][i], chunk_bytes<5>(block));
      store_256(bytes[6][i], chunk_bytes<6>(block));
      store_256(bytes[7][i], chunk_bytes<7>(block));
      if (i == kRows / 2) pace->step();
    }
    for (int chunk = 0; chunk < 8; ++chunk) {
      __m256i v[kRows], w[kRows];
      for (int i = 0; i < kRows; ++i) v[i] = load_256(bytes[chunk][i]);
      transpose_dwords(v, w);
      for (int t = 0; t < kRows; ++t) store_256(panel->w[8 * chunk + t], w[t]);
    }
    __m256i pairs[kRows];  // two int16 of each row: those of 32 elements
    transpose_dwords(scales, pairs);
    for (int i = 0; i < 8; ++i) {
      if constexpr (kSubBlock == 32) {
        store_256(panel->scale[i], pairs[i]);
      } else {
        store_256(panel->scale[2 * i], twice_low_half(pairs[i]));
        store_256(panel->scale[2 * i + 1], twice_high_half(pairs[i]));
      }
    }
    if constexpr (Format::kHasMin) transpose_dwords(mins, pairs);
    if constexpr (kMeetsSums) {
      for (int i = 0; i < 8; ++i) store_256(panel->pair[i], pairs[i]);
    }
    _mm256_store_ps(panel->d, Format::d(p, offset));
    if constexpr (Format::kHasMin) _mm256_store_ps(panel->dmin, load_halves(p + offsetof(Block, dmin), offset));
  }

  // acc = fma(float(S), d * dx, acc);  acc = fma(-float(M), dmin * dx, acc)
  template <int kColumns, int kPanels>
  static void multiply(const Panel* panels, int, const Column* columns, float (*const* acc_rows)[kRows]) {
    __m256i total[kPanels][kColumns];
    for (int p = 0; p < kPanels; ++p) {
      for (int c = 0; c < kColumns; ++c) total[p][c] = _mm256_setzero_si256();
    }
    for (int element = 0; element < kChunk; element += 4 * kSteps) {
      __m256i sum[kPanels][kColumns];
      add_products<kSigned, kSteps>(panels, columns, element, sum);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        const __m256i scale = load_256(panels[p].scale[element / kSubBlock]);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          total[p][c] = _mm256_add_epi32(total[p][c], _mm256_madd_epi16(sum[p][c], scale));
        }
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const __m256 dx = _mm256_set1_ps(*columns[c].d);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        __m256i met = _mm256_setzero_si256();
        if constexpr (kMeetsSums) met = meet_sums(panels[p], columns[c].sums16);
        __m256i s = total[p][c];
        if constexpr (Format::kOffsetShift >= 0) s = _mm256_sub_epi32(s, _mm256_slli_epi32(met, Format::kOffsetShift));
        __m256 acc = _mm256_load_ps(acc_rows[p][c]);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_mul_ps(_mm256_load_ps(panels[p].d), dx), acc);
        if constexpr (Format::kHasMin) {
          acc = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(met), _mm256_mul_ps(_mm256_load_ps(panels[p].dmin), dx), acc);
        }
        _mm256_store_ps(acc_rows[p][c], acc);
      }
    }
  }

 private:
  template <int kChunkOfBlock>
  static inline __attribute__((always_inline)) __m256i chunk_bytes(const Format& block) {
    const __m256i w = block.template chunk<kChunkOfBlock>();
    if constexpr (Format::kWeights == Weights::kMagnitudes) {
      return _mm256_sign_epi8(w, block.template sign<kChunkOfBlock>());
    } else {
      return w;
    }
  }

  static inline __m256i meet_sums(const Panel& panel, const int16_t* sums16) {
    __m256i met = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      int32_t two;
      std::memcpy(&two, sums16 + 2 * i, 4);
      met = _mm256_add_epi32(met, _mm256_madd_epi16(load_256(panel.pair[i]), _mm256_set1_epi32(two)));
    }
    return met;
  }
};

}  // namespace
}  // namespace expertree::avx2

#endif
