// Products of the code-book formats with few columns (stream.h, grid.h).
#include "cpp/kernels/avx512/grid.h"
#include "cpp/kernels/avx512/stream.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// Cuts kParts * 64 bytes at q into parts, the first n bytes being there: byte g of part e is byte kParts * g + e.
template <int kParts>
void cut_into_parts(const int8_t* q, int64_t n, int8_t* out) {
  const __m512i even = every_other_byte();
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
  __m512i v[kParts];
  for (int i = 0; i < kParts; ++i) v[i] = 64 * i < n ? load_512(q + 64 * i) : _mm512_setzero_si512();
  // Each round halves the distance between bytes of a part: v[i] of the even ones, then of the odd ones.
  int bits[kParts] = {};  // of the part that v[i] belongs to, so far
  for (int run = kParts, bit = 1; run > 1; run /= 2, bit *= 2) {
    __m512i next[kParts];
    int next_bits[kParts];
    for (int begin = 0; begin < kParts; begin += run) {
      for (int i = 0; i < run / 2; ++i) {
        const __m512i a = v[begin + 2 * i];
        const __m512i b = v[begin + 2 * i + 1];
        next[begin + i] = _mm512_permutex2var_epi8(a, even, b);
        next[begin + run / 2 + i] = _mm512_permutex2var_epi8(a, odd, b);
        next_bits[begin + i] = bits[begin];
        next_bits[begin + run / 2 + i] = bits[begin] | bit;
      }
    }
    for (int i = 0; i < kParts; ++i) {
      v[i] = next[i];
      bits[i] = next_bits[i];
    }
  }
  for (int i = 0; i < kParts; ++i) _mm512_store_si512(out + 64 * bits[i], v[i]);
}

// A sum per dword, times its scale. x has the unit's activations in parts; start is -kOffset times the sums of q over each
// dword's elements or, with scales of 16, a quarter of that for each 16: it fits in 16 bits.
template <typename Grid>
inline __m512i unit_product(const __m512i (&part)[Grid::kParts], __m512i scale, const int8_t* x, const int32_t* start) {
  if constexpr (Grid::kScaleOf16) {  // pairs of products fit in 16 bits
    const __m512i scale4 = _mm512_slli_epi16(scale, 2);
    __m512i total[2] = {_mm512_dpwssd_epi32(_mm512_setzero_si512(), scale4, _mm512_load_si512(start)),
                        _mm512_setzero_si512()};
#pragma GCC unroll 8
    for (int e = 0; e < Grid::kParts; ++e) {
      const __m512i pairs = _mm512_maddubs_epi16(part[e], _mm512_load_si512(x + 64 * e));
      total[e % 2] = _mm512_dpwssd_epi32(total[e % 2], pairs, scale);
    }
    return _mm512_add_epi32(total[0], total[1]);
  } else {
    __m512i sum[2] = {_mm512_load_si512(start), _mm512_setzero_si512()};
#pragma GCC unroll 8
    for (int e = 0; e < Grid::kParts; ++e) {
      sum[e % 2] = _mm512_dpbusd_epi32(sum[e % 2], part[e], _mm512_load_si512(x + 64 * e));
    }
    return _mm512_mullo_epi32(_mm512_add_epi32(sum[0], sum[1]), scale);
  }
}

template <typename Grid>
struct GridStream {
  static constexpr int kElements = 256;
  static constexpr int64_t kBytes = sizeof(typename Grid::Block);
  static constexpr int kChunkBlocks = 16;
  static constexpr int kUnitBlocks = Grid::kParts / 4;

  template <int kColumns>
  struct Chunk {
    alignas(64) int8_t q[kColumns][kChunkBlocks * 256];  // unit by unit, in parts
    alignas(64) int32_t start[kColumns][kChunkBlocks / kUnitBlocks][16];
    alignas(64) int32_t sums[kColumns][kPanelRows][kChunkBlocks];
    const float* d[kColumns];

    void prepare(const StreamColumn* columns, int64_t b, int n) {
      for (int c = 0; c < kColumns; ++c) {
        for (int i = 0; i < n; i += kUnitBlocks) {
          cut_into_parts<Grid::kParts>(columns[c].q + (b + i) * 256, (n - i) * 256, q[c] + i * 256);
          const __mmask32 there = first_lanes32(16 * min_of(kUnitBlocks, n - i));
          prepare_start(_mm512_maskz_loadu_epi16(there, columns[c].sums16 + (b + i) * 16), start[c][i / kUnitBlocks]);
        }
        d[c] = columns[c].d + b;
      }
    }

    inline __attribute__((always_inline)) void add_row(const std::byte* group, int64_t stride, int r, int n,
                                                       const Ahead& ahead) {
      const std::byte* p = group + r * stride;
      const auto read = [&](int first) __attribute__((always_inline)) {
        const std::byte* block = p + first * kBytes;
        ahead.reading(block - group, kUnitBlocks * kBytes);
        return Grid::read(block, first + 1 < n ? block + kBytes : block);
      };
      // The next unit is looked up before this one is multiplied: each has what the other's instructions wait for.
      GridCodes next = read(0);
      for (int b = 0; b < n; b += 4 * kUnitBlocks) {
        __m512i product[kColumns][4];
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) {
          const int first = b + u * kUnitBlocks;
          if (first >= n) {
            for (int c = 0; c < kColumns; ++c) product[c][u] = _mm512_setzero_si512();
            continue;
          }
          const GridCodes codes = next;
          if (first + kUnitBlocks < n) next = read(first + kUnitBlocks);
          __m512i part[Grid::kParts];
          Grid::open(codes, part);
          for (int c = 0; c < kColumns; ++c)
            product[c][u] = unit_product<Grid>(part, codes.scale, q[c] + first * 256, start[c][first / kUnitBlocks]);
        }
        for (int c = 0; c < kColumns; ++c) store_sums(product[c], sums[c][r] + b);
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
          const __m512 scale = stored_scales<typename Grid::Block>(p + (b + i) * kBytes, stride);
          for (int c = 0; c < kColumns; ++c) {
            acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[c][i]), _mm512_mul_ps(scale, set1(d[c][b + i])), acc[c]);
          }
        }
      }
    }

   private:
    static inline void prepare_start(__m512i sums16, int32_t* out) {
      if constexpr (Grid::kScaleOf16) {
        _mm512_store_si512(out, _mm512_mullo_epi16(sums16, _mm512_set1_epi16(-Grid::kOffset / 4)));
      } else if constexpr (kUnitBlocks == 2) {  // a dword is 32 elements
        const __m512i sums = _mm512_madd_epi16(sums16, _mm512_set1_epi16(1));
        _mm512_store_si512(out, _mm512_mullo_epi32(sums, _mm512_set1_epi32(-Grid::kOffset)));
      } else {  // 16
        const __m512i sums = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(sums16));
        _mm512_store_si512(out, _mm512_mullo_epi32(sums, _mm512_set1_epi32(-Grid::kOffset)));
      }
    }

    // One unit per register: a block in all four lanes, or one in the lower and one in the upper two.
    static inline void store_sums(const __m512i (&v)[4], int32_t* out) {
      auto* to = reinterpret_cast<__m128i*>(out);
      if constexpr (kUnitBlocks == 1) {
        _mm_store_si128(to, sum_lanes(v[0], v[1], v[2], v[3]));
      } else {
        const __m512i s = sum_quads(v[0], v[1], v[2], v[3]);
        const __m512i t = _mm512_add_epi32(s, _mm512_shuffle_i32x4(s, s, 0xb1));
        const __m128i lower = _mm512_castsi512_si128(t);
        const __m128i upper = _mm512_extracti32x4_epi32(t, 2);
        _mm_store_si128(to, _mm_unpacklo_epi32(lower, upper));
        _mm_store_si128(to + 1, _mm_unpackhi_epi32(lower, upper));
      }
    }
  };
};

}  // namespace

void matmul_iq2_xxs(const MatmulArgs& args) { matmul_stream<GridStream<GridIQ2_XXS>>(args, panel_iq2_xxs); }
void matmul_iq2_xs(const MatmulArgs& args) { matmul_stream<GridStream<GridIQ2_XS>>(args, panel_iq2_xs); }
void matmul_iq2_s(const MatmulArgs& args) { matmul_stream<GridStream<GridIQ2_S>>(args, panel_iq2_s); }
void matmul_iq3_xxs(const MatmulArgs& args) { matmul_stream<GridStream<GridIQ3_XXS>>(args, panel_iq3_xxs); }
void matmul_iq3_s(const MatmulArgs& args) { matmul_stream<GridStream<GridIQ3_S>>(args, panel_iq3_s); }

}  // namespace expertree::avx512

#endif
