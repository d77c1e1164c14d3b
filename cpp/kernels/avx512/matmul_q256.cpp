// Products of the 256-element formats with int8 activations (canonical.h, C4). panel.h has the plan.
//
// A sub-block's sum is multiplied by its integer scale with vpdpwssd where the sum fits in 16 bits (one instruction, the
// scale's upper half being zero), else with vpmulld (two, on one port).
#include "cpp/kernels/avx512/panel.h"
#include "cpp/tensor/blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// What 16 rows hold besides their elements.
struct Scales {
  alignas(64) int32_t scale[16][kPanelRows];  // per sub-block; see Shape for the form
  alignas(64) int32_t min[8][kPanelRows];  // two int16: the minimums that meet sums16[2i] and sums16[2i + 1]
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
};

// What a column adds to a chunk, ready to be broadcast.
template <Shape kShape, int kGroup>
struct Operand {
  const int8_t* q;
  alignas(64) int32_t start[kChunk / kGroup];  // -offset * sum(q) of each group
  alignas(32) int32_t sums[8];  // pairs of sums16
  float d;

  void prepare(const Column& column) {
    q = column.q;
    d = *column.d;
    const __m256i sums16 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(column.sums16));
    if (kShape.has_min) _mm256_store_si256(reinterpret_cast<__m256i*>(sums), sums16);
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
  inline __attribute__((always_inline)) void finish(int p, float (*acc_rows)[kPanelRows]) const {
    __m512i mins[kColumns];
    if (kShape.has_min) {
      for (int c = 0; c < kColumns; ++c) mins[c] = _mm512_setzero_si512();
      for (int i = 0; i < 8; ++i) {
        const __m512i min = _mm512_load_si512(scales[p]->min[i]);
        for (int c = 0; c < kColumns; ++c) {
          mins[c] = _mm512_dpwssd_epi32(mins[c], min, _mm512_set1_epi32(x[c].sums[i]));
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

// What panel.h asks of a format. Self::expand_scales fills Scales from the block of 16 rows at p, stride bytes apart;
// Self::expand_bytes calls sink.add_group once for each 16 elements.
template <typename Self, typename Block, Shape kShape>
struct Format256 {
  using Panel = Panel256;
  static constexpr int kElements = 256;
  static constexpr int64_t kBytes = sizeof(Block);

  static void expand(const std::byte* p, int64_t stride, int, Panel* panel) {
    Self::expand_scales(p, stride, &panel->scales);
    StorePanel sink{panel};
    Self::expand_bytes(p, stride, sink);
  }

  // kPanels panels, acc[p] being those of panel p.
  template <int kColumns, int kPanels>
  static void multiply(const Panel* panels, int, const Column* columns, float (*const* acc)[kPanelRows]) {
    const Scales* scales[kPanels];
    for (int p = 0; p < kPanels; ++p) scales[p] = &panels[p].scales;
    Product<kShape, kShape.group, kColumns, kPanels> product(scales, columns);
    for (int element = 0; element < kChunk; element += kShape.group) {
      product.add(element, [&](int p, int t) { return _mm512_load_si512(panels[p].w[element / 4 + t]); });
    }
    for (int p = 0; p < kPanels; ++p) product.finish(p, acc[p]);
  }

  template <int kColumns>
  static void expand_and_multiply(const std::byte* p, int64_t stride, int, const Column* columns,
                                  float (*acc)[kPanelRows]) {
    Scales scales;
    Self::expand_scales(p, stride, &scales);
    const Scales* const all[] = {&scales};
    Product<kShape, 16, kColumns> product(all, columns);
    Self::expand_bytes(p, stride, product);
    product.finish(0, acc);
  }
};

inline __m512i two_bits(__m512i v, int quarter) {
  return and_bytes(_mm512_srli_epi16(v, 2 * static_cast<unsigned>(quarter)), 3);
}

// Bit `bit` of every byte, moved to bit `to`.
inline __m512i move_bit(__m512i v, int bit, int to) {
  const __m512i moved = bit < to ? _mm512_slli_epi16(v, static_cast<unsigned>(to - bit))
                                 : _mm512_srli_epi16(v, static_cast<unsigned>(bit - to));
  return and_bytes(moved, 1 << to);
}

// Q2_K and Q3_K: 16 bytes of qs from 32 * half + 16 * part on hold elements 128 * half + 32 * quarter + 16 * part
// in bits 2 * quarter.
struct Q2_K : Format256<Q2_K, BlockQ2_K, Shape{16, 16, true, 0, true}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) {
    alignas(64) uint32_t halves[kPanelRows];
    copy_from_rows(p + offsetof(BlockQ2_K, d), stride, halves);
    __m512i v[4];
    load_rows(p + offsetof(BlockQ2_K, scales), stride, v);
    for (int i = 0; i < 4; ++i) {
      const __m512i scale = low_nibbles(v[i]);
      const __m512i min = high_nibbles(v[i]);
      for (unsigned j = 0; j < 4; ++j)
        _mm512_store_si512(out->scale[4 * i + static_cast<int>(j)], unsigned_byte(scale, j));
      _mm512_store_si512(out->min[2 * i], byte_pair(min, 0, 1));
      _mm512_store_si512(out->min[2 * i + 1], byte_pair(min, 2, 3));
    }
    const __m512i both = _mm512_load_si512(halves);
    _mm512_store_ps(out->d, low_halves(both));
    _mm512_store_ps(out->dmin, high_halves(both));
  }

  template <typename Sink>
  static void expand_bytes(const std::byte* p, int64_t stride, Sink& sink) {
    for (int i = 0; i < 4; ++i) {
      __m512i v[4];
      load_rows(p + offsetof(BlockQ2_K, qs) + 16 * i, stride, v);
#pragma GCC unroll 4
      for (int quarter = 0; quarter < 4; ++quarter) {
        __m512i w[4];
        for (int t = 0; t < 4; ++t) w[t] = two_bits(v[t], quarter);
        sink.add_group(128 * (i / 2) + 32 * quarter + 16 * (i % 2), w);
      }
    }
  }
};

struct Q3_K : Format256<Q3_K, BlockQ3_K, Shape{16, 16, true, 4, false}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) {
    // The 14 bytes of scales and d, read with the two before them: 16 bytes that end where the block ends.
    __m512i v[4];
    load_rows(p + offsetof(BlockQ3_K, scales) - 2, stride, v);
    const auto joined = [&](int i) {
      return _mm512_or_si512(_mm512_srli_epi32(v[i], 16), _mm512_slli_epi32(v[i + 1], 16));
    };
    const __m512i low[2] = {joined(0), joined(1)};
    const __m512i high = joined(2);
    for (int i = 0; i < 4; ++i) {  // sub-blocks 4i .. 4i+3
      const __m512i nibble = i < 2 ? low_nibbles(low[i]) : high_nibbles(low[i - 2]);
      const __m512i upper = _mm512_slli_epi16(two_bits(high, i), 4);
      const __m512i scale = _mm512_sub_epi8(_mm512_or_si512(nibble, upper), _mm512_set1_epi8(32));
      for (unsigned j = 0; j < 4; ++j) {
        _mm512_store_si512(out->scale[4 * i + static_cast<int>(j)], signed_byte_as_int16(scale, j));
      }
    }
    _mm512_store_ps(out->d, high_halves(v[3]));
  }

  template <typename Sink>
  static void expand_bytes(const std::byte* p, int64_t stride, Sink& sink) {
    __m512i mask[2][4];
    for (int i = 0; i < 2; ++i) load_rows(p + offsetof(BlockQ3_K, hmask) + 16 * i, stride, mask[i]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i v[4];
      load_rows(p + offsetof(BlockQ3_K, qs) + 16 * i, stride, v);
#pragma GCC unroll 4
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int element = 128 * (i / 2) + 32 * quarter + 16 * (i % 2);
        __m512i w[4];
        for (int t = 0; t < 4; ++t) {
          w[t] = _mm512_or_si512(two_bits(v[t], quarter), move_bit(mask[i % 2][t], element / 32, 2));
        }
        sink.add_group(element, w);
      }
    }
  }
};

// d, dmin and the packed six-bit scales and minimums of Q4_K and Q5_K: the first 16 bytes of both blocks.
inline void expand_scale_min(const std::byte* p, int64_t stride, Scales* out) {
  static_assert(offsetof(BlockQ4_K, scales) == 4 && offsetof(BlockQ4_K, qs) == 16);
  static_assert(offsetof(BlockQ5_K, scales) == 4 && offsetof(BlockQ5_K, qh) == 16);
  __m512i v[4];
  load_rows(p, stride, v);
  const auto upper = [](__m512i x) { return and_bytes(_mm512_srli_epi16(x, 2), 0x30); };
  const __m512i scale[2] = {and_bytes(v[1], 63), _mm512_or_si512(low_nibbles(v[3]), upper(v[1]))};
  const __m512i min[2] = {and_bytes(v[2], 63), _mm512_or_si512(high_nibbles(v[3]), upper(v[2]))};
#pragma GCC unroll 8
  for (unsigned j = 0; j < 8; ++j) {
    _mm512_store_si512(out->scale[j], unsigned_byte(scale[j / 4], j % 4));
    _mm512_store_si512(out->min[j], byte_pair(min[j / 4], j % 4, j % 4));
  }
  _mm512_store_ps(out->d, low_halves(v[0]));
  _mm512_store_ps(out->dmin, high_halves(v[0]));
}

// A sub-block of 32 sums up to 32*15*127; in halves it fits in 16 bits.
struct Q4_K : Format256<Q4_K, BlockQ4_K, Shape{32, 16, true, 0, true}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) { expand_scale_min(p, stride, out); }

  template <typename Sink>
  static void expand_bytes(const std::byte* p, int64_t stride, Sink& sink) {
    for (int i = 0; i < 8; ++i) {
      __m512i v[4];
      load_rows(p + offsetof(BlockQ4_K, qs) + 16 * i, stride, v);
      const int element = 64 * (i / 2) + 16 * (i % 2);
      __m512i w[4];
      for (int t = 0; t < 4; ++t) w[t] = low_nibbles(v[t]);
      sink.add_group(element, w);
      for (int t = 0; t < 4; ++t) w[t] = high_nibbles(v[t]);
      sink.add_group(element + 32, w);
    }
  }
};

struct Q5_K : Format256<Q5_K, BlockQ5_K, Shape{32, 32, false, 0, true}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) { expand_scale_min(p, stride, out); }

  template <typename Sink>
  static void expand_bytes(const std::byte* p, int64_t stride, Sink& sink) {
    __m512i high[2][4];
    for (int i = 0; i < 2; ++i) load_rows(p + offsetof(BlockQ5_K, qh) + 16 * i, stride, high[i]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __m512i v[4];
      load_rows(p + offsetof(BlockQ5_K, qs) + 16 * i, stride, v);
      const int element = 64 * (i / 2) + 16 * (i % 2);
      const __m512i(&h)[4] = high[i % 2];
      __m512i w[4];
      for (int t = 0; t < 4; ++t) w[t] = _mm512_or_si512(low_nibbles(v[t]), move_bit(h[t], element / 32, 4));
      sink.add_group(element, w);
      for (int t = 0; t < 4; ++t) w[t] = _mm512_or_si512(high_nibbles(v[t]), move_bit(h[t], element / 32 + 1, 4));
      sink.add_group(element + 32, w);
    }
  }
};

struct Q6_K : Format256<Q6_K, BlockQ6_K, Shape{16, 16, false, 32, false}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) {
    alignas(64) uint16_t halves[kPanelRows];
    copy_from_rows(p + offsetof(BlockQ6_K, d), stride, halves);
    __m512i v[4];
    load_rows(p + offsetof(BlockQ6_K, scales), stride, v);
#pragma GCC unroll 16
    for (unsigned j = 0; j < 16; ++j) _mm512_store_si512(out->scale[j], signed_byte_as_int32(v[j / 4], j % 4));
    const __m256i half = _mm256_load_si256(reinterpret_cast<const __m256i*>(halves));
    _mm512_store_ps(out->d, _mm512_cvtph_ps(half));
  }

  // A half of 128 elements has 64 bytes of ql (32 with quarters 0 and 2, 32 with quarters 1 and 3) and 32 of qh.
  template <typename Sink>
  static void expand_bytes(const std::byte* p, int64_t stride, Sink& sink) {
    for (int part = 0; part < 4; ++part) {
      __m512i high[4];
      load_rows(p + offsetof(BlockQ6_K, qh) + 16 * part, stride, high);
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        __m512i v[4];
        load_rows(p + offsetof(BlockQ6_K, ql) + 64 * (part / 2) + 32 * pair + 16 * (part % 2), stride, v);
        const int element = 128 * (part / 2) + 32 * pair + 16 * (part % 2);
        const auto upper = [&](int t, int quarter) { return _mm512_slli_epi16(two_bits(high[t], quarter), 4); };
        __m512i w[4];
        for (int t = 0; t < 4; ++t) w[t] = _mm512_or_si512(low_nibbles(v[t]), upper(t, pair));
        sink.add_group(element, w);
        for (int t = 0; t < 4; ++t) w[t] = _mm512_or_si512(high_nibbles(v[t]), upper(t, pair + 2));
        sink.add_group(element + 64, w);
      }
    }
  }
};

struct IQ4_XS : Format256<IQ4_XS, BlockIQ4_XS, Shape{32, 32, false, 128, false}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) {
    __m512i header[4];  // d and scales_h, scales_l, and 8 bytes of qs
    load_rows(p, stride, header);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; ++j) {
      const __m512i low = _mm512_and_si512(_mm512_srli_epi32(header[1], 4 * j), _mm512_set1_epi32(15));
      const __m512i high = _mm512_and_si512(_mm512_srli_epi32(header[0], 16 + 2 * j), _mm512_set1_epi32(3));
      const __m512i scale = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
      _mm512_store_si512(out->scale[j], _mm512_sub_epi32(scale, _mm512_set1_epi32(32)));
    }
    _mm512_store_ps(out->d, low_halves(header[0]));
  }

  template <typename Sink>
  static void expand_bytes(const std::byte* p, int64_t stride, Sink& sink) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4Values));
    const __m512i table = _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8(-128)));
    for (int i = 0; i < 8; ++i) {
      __m512i v[4];
      load_rows(p + offsetof(BlockIQ4_XS, qs) + 16 * i, stride, v);
      __m512i w[4];
      for (int t = 0; t < 4; ++t) w[t] = _mm512_shuffle_epi8(table, low_nibbles(v[t]));
      sink.add_group(32 * i, w);
      for (int t = 0; t < 4; ++t) w[t] = _mm512_shuffle_epi8(table, high_nibbles(v[t]));
      sink.add_group(32 * i + 16, w);
    }
  }
};

}  // namespace

void matmul_q2_k(const MatmulArgs& args) { matmul<Q2_K>(args); }
void matmul_q3_k(const MatmulArgs& args) { matmul<Q3_K>(args); }
void panel_q4_k(const MatmulArgs& args) { matmul<Q4_K>(args); }
void panel_q5_k(const MatmulArgs& args) { matmul<Q5_K>(args); }
void panel_q6_k(const MatmulArgs& args) { matmul<Q6_K>(args); }
void matmul_iq4_xs(const MatmulArgs& args) { matmul<IQ4_XS>(args); }

}  // namespace expertree::avx512

#endif
