// The AVX-512 products of 256-element formats (canonical.h, C4). panel.h has the plan.
//
// A sub-block's sum is multiplied by its integer scale with vpdpwssd where the sum fits in 16 bits (one instruction, the
// scale's upper half being zero), else with vpmulld (two, on one port).
#pragma once

#include "cpp/kernels/avx512/panel.h"
#include "cpp/tensor/blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// What 16 rows hold besides their elements.
struct Scales {
  alignas(64) int32_t scale[16][kPanelRows];  // per sub-block; see Shape for the form
  alignas(64) int32_t min[8][kPanelRows];  // two int16: the minimums that meet the sums of pair i (Operand)
  alignas(64) int32_t back[4][kPanelRows];  // two int16: offset times the scales that meet them; of lowered shapes
  alignas(64) float d[kPanelRows];
  alignas(64) float dmin[kPanelRows];
};

struct Panel256 {
  alignas(64) Bytes w;
  Scales scales;
};

// What distinguishes the formats once a panel is expanded.
struct Shape {
  int sub_block;  // elements per scale: 16 or 32
  int group;  // elements per integer sum with an expanded panel: 16 or 32, at most sub_block
  bool fits_int16;  // sums of a group fit: scales are (int16, 0). Otherwise scales are int32
  int offset;  // of the unsigned weights
  bool has_min;
  bool lowered = false;  // the weights are unsigned by themselves: the offset makes sums fit, and is added back

  constexpr int n_pairs() const { return sub_block == 32 ? 4 : 8; }
};

// What a column adds to a chunk, ready to be broadcast.
template <Shape kShape, int kGroup>
struct Operand {
  const int8_t* q;
  alignas(64) int32_t start[kChunk / kGroup];  // -offset * sum(q) of each group
  alignas(32) int32_t sums[8];  // n_pairs of two int16: sums of neighbouring sub-blocks
  float d;

  void prepare(const Column& column) {
    q = column.q;
    d = *column.d;
    const __m256i sums16 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(column.sums16));
    if (kShape.has_min && kShape.n_pairs() == 8) _mm256_store_si256(reinterpret_cast<__m256i*>(sums), sums16);
    if (kShape.has_min && kShape.n_pairs() == 4) {
      const __m256i sums32 = _mm256_madd_epi16(sums16, _mm256_set1_epi16(1));
      _mm_store_si128(reinterpret_cast<__m128i*>(sums), _mm256_cvtepi32_epi16(sums32));
    }
    if (kShape.offset != 0 && kGroup == 16) {
      const __m512i wide = _mm512_cvtepi16_epi32(sums16);
      _mm512_store_si512(start, _mm512_mullo_epi32(wide, _mm512_set1_epi32(-kShape.offset)));
    }
    if (kShape.offset != 0 && kGroup == 32) {
      const __m256i products = _mm256_madd_epi16(sums16, _mm256_set1_epi16(-kShape.offset));
      _mm256_store_si256(reinterpret_cast<__m256i*>(start), products);
    }
  }
};

// One block of kPanels * 16 rows times kColumns columns: groups of kGroup elements are added in any order, then finish.
template <Shape kShape, int kGroup, int kColumns, int kPanels = 1>
struct Product {
  static constexpr int kDwords = kGroup / 4;

  const Scales* const* scales;  // [kPanels]
  Operand<kShape, kGroup> x[kColumns];
  __m512i total[kPanels][kColumns];

  Product(const Scales* const* scales_in, const Column* columns) : scales(scales_in) {
    for (int c = 0; c < kColumns; ++c) {
      x[c].prepare(columns[c]);
      for (int p = 0; p < kPanels; ++p) total[p][c] = _mm512_setzero_si512();
    }
  }

  // w(p, t): elements `element` + 4t .. 4t+3 of panel p.
  template <typename GetWeights>
  inline __attribute__((always_inline)) void add(int element, const GetWeights& w) {
    __m512i sum[kPanels][kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const __m512i start =
          kShape.offset != 0 ? _mm512_set1_epi32(x[c].start[element / kGroup]) : _mm512_setzero_si512();
      for (int p = 0; p < kPanels; ++p) sum[p][c] = start;
    }
    // Columns innermost: as many independent chains as there are columns (vpdpbusd takes 5 cycles).
#pragma GCC unroll 8
    for (int t = 0; t < kDwords; ++t) {
      __m512i w_part[kPanels];
      for (int p = 0; p < kPanels; ++p) w_part[p] = w(p, t);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const __m512i x_part = _mm512_set1_epi32(load_i32(x[c].q + element + 4 * t));
        for (int p = 0; p < kPanels; ++p) sum[p][c] = _mm512_dpbusd_epi32(sum[p][c], w_part[p], x_part);
      }
    }
    for (int p = 0; p < kPanels; ++p) {
      const __m512i scale = _mm512_load_si512(scales[p]->scale[element / kShape.sub_block]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        total[p][c] = kShape.fits_int16 ? _mm512_dpwssd_epi32(total[p][c], sum[p][c], scale)
                                        : _mm512_add_epi32(total[p][c], _mm512_mullo_epi32(sum[p][c], scale));
      }
    }
  }

  // What the expansion of one panel calls.
  inline __attribute__((always_inline)) void add_group(int element, const __m512i (&w)[kDwords]) {
    add(element, [&](int, int t) { return w[t]; });
  }

  // acc = fma(float(S), d * dx, acc);  acc = fma(-float(M), dmin * dx, acc)
  inline __attribute__((always_inline)) void finish(int p, float (*acc_rows)[kPanelRows]) {
    __m512i mins[kColumns];
    if (kShape.has_min) {
      for (int c = 0; c < kColumns; ++c) mins[c] = _mm512_setzero_si512();
      for (int i = 0; i < kShape.n_pairs(); ++i) {
        const __m512i min = _mm512_load_si512(scales[p]->min[i]);
        for (int c = 0; c < kColumns; ++c) {
          const __m512i sums = _mm512_set1_epi32(x[c].sums[i]);
          mins[c] = _mm512_dpwssd_epi32(mins[c], min, sums);
          if (kShape.lowered) {
            total[p][c] = _mm512_dpwssd_epi32(total[p][c], _mm512_load_si512(scales[p]->back[i]), sums);
          }
        }
      }
    }
    const __m512 d = _mm512_load_ps(scales[p]->d);
    for (int c = 0; c < kColumns; ++c) {
      const __m512 dx = set1(x[c].d);
      __m512 acc = _mm512_load_ps(acc_rows[c]);
      acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total[p][c]), _mm512_mul_ps(d, dx), acc);
      if (kShape.has_min) {
        const __m512 dmin = _mm512_load_ps(scales[p]->dmin);
        acc = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins[c]), _mm512_mul_ps(dmin, dx), acc);
      }
      _mm512_store_ps(acc_rows[c], acc);
    }
  }
};

// Takes groups of 16 elements to memory.
struct StorePanel {
  Panel256* panel;

  inline __attribute__((always_inline)) void add_group(int element, const __m512i (&w)[4]) const {
    for (int t = 0; t < 4; ++t) _mm512_store_si512(panel->w[element / 4 + t], w[t]);
  }
};

// kPanels expanded panels, acc[p] being those of panel p. kPaced: the pace makes a step half-way.
template <Shape kShape, bool kPaced, int kColumns, int kPanels>
inline void multiply_panels(const Panel256* panels, const Column* columns, float (*const* acc)[kPanelRows],
                            Pace* pace) {
  const Scales* scales[kPanels];
  for (int p = 0; p < kPanels; ++p) scales[p] = &panels[p].scales;
  Product<kShape, kShape.group, kColumns, kPanels> product(scales, columns);
  constexpr int kPart = kPaced ? kChunk / 2 : kChunk;
  for (int part = 0; part < kChunk; part += kPart) {
    if (kPaced && part > 0) pace->step();
    for (int element = part; element < part + kPart; element += kShape.group) {
      product.add(element, [&](int p, int t) { return _mm512_load_si512(panels[p].w[element / 4 + t]); });
    }
  }
  for (int p = 0; p < kPanels; ++p) product.finish(p, acc[p]);
}

}  // namespace
}  // namespace expertree::avx512

#endif
