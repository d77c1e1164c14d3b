// Blocks of the code-book formats in registers, without a gather: indices of 64 groups are looked up in byte tables
// (vpermi2b takes 128 entries at a time), which gives each element's place among the grid's values.
//
// A unit is 64 groups: two blocks of 32 groups of 8 elements (IQ2), or one block of 64 groups of 4 (IQ3). Part e of a
// unit is element e of every group, so that the four bytes of a dword, four neighbouring groups, share a scale.
#pragma once

#include "cpp/kernels/avx512/panel_bytes.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/integer_blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

inline __m512i look_up_128(const uint8_t* table, __m512i index) {  // index bits 0-6
  return _mm512_permutex2var_epi8(load_512(table), index, load_512(table + 64));
}
inline __m512i look_up_256(const uint8_t* table, __m512i index, __mmask64 bit7) {
  return _mm512_mask_mov_epi8(look_up_128(table, index), bit7, look_up_128(table + 128, index));
}
inline __m512i look_up_512(const uint8_t* table, __m512i index, __mmask64 bit7, __mmask64 bit8) {
  return _mm512_mask_mov_epi8(look_up_256(table, index, bit7), bit8, look_up_256(table + 256, index, bit7));
}
inline __m512i look_up_1024(const uint8_t* table, __m512i index, __mmask64 bit7, __mmask64 bit8, __mmask64 bit9) {
  return _mm512_mask_mov_epi8(look_up_512(table, index, bit7, bit8), bit9, look_up_512(table + 512, index, bit7, bit8));
}

inline __m512i join_halves(const std::byte* p0, const std::byte* p1) {  // 32 bytes of each
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p0));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p1)), 1);
}
inline __m128i join_eights(const std::byte* p0, const std::byte* p1) {  // 8 bytes of each
  int64_t low, high;
  std::memcpy(&low, p0, 8);
  std::memcpy(&high, p1, 8);
  return _mm_insert_epi64(_mm_cvtsi64_si128(low), high, 1);
}
inline __m512i odd_dwords(__m512i x) { return _mm512_or_si512(_mm512_slli_epi32(x, 1), _mm512_set1_epi32(1)); }

// What the stored d is divided by (integer_blocks.h).
template <typename Block>
constexpr float kDivisor = kIQ2Scale;
template <>
constexpr float kDivisor<BlockIQ3_XXS> = kIQ3_XXSScale;
template <>
constexpr float kDivisor<BlockIQ3_S> = 1.0f;

// d of the blocks of 16 rows at p.
template <typename Block>
inline __m512 stored_scales(const std::byte* p, int64_t stride) {
  static_assert(offsetof(Block, d) == 0);
  alignas(32) uint16_t halves[kPanelRows];
  copy_from_rows(p, stride, halves);
  const __m512 d = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)));
  return _mm512_mul_ps(d, set1(kDivisor<Block>));
}

// A unit, with its scales ready to be multiplied with the unit's sums.
template <int kParts>
struct GridUnit {
  __m512i magnitude[kParts];
  __mmask64 minus[kParts];
  __m512i scale;  // int32 per dword, or (IQ2_XS, IQ2_S) int16 per two groups
};

// IQ2: codes of two bits, low: elements 0-3 of every group, high: 4-7; signs: a byte for each group.
inline void open_groups_of_8(__m512i low, __m512i high, __m512i signs, GridUnit<8>* out) {
  // Tables indexed by two codes at once: the value of the first, or of the second.
  const __m512i first = _mm512_set1_epi32(0x002b1908);
  const __m512i second = _mm512_broadcast_i32x4(_mm_set_epi32(0, 0x2b2b2b2b, 0x19191919, 0x08080808));
  const __m512i pairs[4] = {low_nibbles(low), high_nibbles(low), low_nibbles(high), high_nibbles(high)};
#pragma GCC unroll 8
  for (int e = 0; e < 8; ++e) {
    out->magnitude[e] = _mm512_shuffle_epi8(e % 2 == 0 ? first : second, pairs[e / 2]);
    out->minus[e] = _mm512_test_epi8_mask(signs, _mm512_set1_epi8(static_cast<char>(1 << e)));
  }
}

// IQ3: codes in nibbles, low: elements 0 and 1 of every group, high: 2 and 3; signs: a byte for eight elements, twice.
inline void open_groups_of_4(__m512i low, __m512i high, __m512i signs, const int8_t (&values)[8], GridUnit<4>* out) {
  const __m512i table = _mm512_broadcast_i32x4(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(values)));
  const __m512i codes[4] = {low_nibbles(low), high_nibbles(low), low_nibbles(high), high_nibbles(high)};
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {
    out->magnitude[e] = _mm512_shuffle_epi8(table, codes[e]);
    out->minus[e] = _mm512_test_epi8_mask(signs, _mm512_set1_epi16(static_cast<int16_t>(0x1001 << e)));
  }
}

struct GridIQ2_XXS {
  using Block = BlockIQ2_XXS;
  static constexpr int kParts = 8;
  static constexpr bool kScaleOf16 = false;

  static inline void open(const std::byte* p0, const std::byte* p1, GridUnit<8>* out) {
    const __m512i a = load_512(p0 + offsetof(Block, qs));
    const __m512i b = load_512(p1 + offsetof(Block, qs));
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i index = _mm512_permutex2var_epi32(a, even, b);
    const __m512i aux = _mm512_permutex2var_epi32(a, _mm512_or_si512(even, _mm512_set1_epi32(1)), b);
    const __m512i sevens = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352e2720150e0700), aux);
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    open_groups_of_8(look_up_256(kGridIQ2_XXS[0], index, bit7), look_up_256(kGridIQ2_XXS[1], index, bit7),
                     look_up_128(kEvenSigns, sevens), out);
    out->scale = odd_dwords(_mm512_srli_epi32(aux, 28));
  }
};

// Nibbles of 8 bytes from each block as 32 int16, each doubled plus one.
inline __m512i odd_nibbles(__m128i bytes) {
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, mask);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  const __m512i wide =
      _mm512_cvtepu8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high)));
  return _mm512_or_si512(_mm512_slli_epi16(wide, 1), _mm512_set1_epi16(1));
}

struct GridIQ2_XS {
  using Block = BlockIQ2_XS;
  static constexpr int kParts = 8;
  static constexpr bool kScaleOf16 = true;

  static inline void open(const std::byte* p0, const std::byte* p1, GridUnit<8>* out) {
    const __m512i a = load_512(p0 + offsetof(Block, qs));
    const __m512i b = load_512(p1 + offsetof(Block, qs));
    alignas(64) static constexpr uint8_t kEven[64] = {
        0,  2,  4,  6,  8,  10, 12,  14,  16,  18,  20,  22,  24,  26,  28,  30,  32,  34,  36,  38, 40, 42,
        44, 46, 48, 50, 52, 54, 56,  58,  60,  62,  64,  66,  68,  70,  72,  74,  76,  78,  80,  82, 84, 86,
        88, 90, 92, 94, 96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122, 124, 126};
    const __m512i even = _mm512_load_si512(kEven);
    const __m512i index = _mm512_permutex2var_epi8(a, even, b);
    const __m512i upper = _mm512_permutex2var_epi8(a, _mm512_or_si512(even, _mm512_set1_epi8(1)), b);
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const __mmask64 bit8 = _mm512_test_epi8_mask(upper, _mm512_set1_epi8(1));
    open_groups_of_8(look_up_512(kGridIQ2_XS[0], index, bit7, bit8), look_up_512(kGridIQ2_XS[1], index, bit7, bit8),
                     look_up_128(kEvenSigns, _mm512_srli_epi16(upper, 1)), out);
    out->scale = odd_nibbles(join_eights(p0 + offsetof(Block, scales), p1 + offsetof(Block, scales)));
  }
};

struct GridIQ2_S {
  using Block = BlockIQ2_S;
  static constexpr int kParts = 8;
  static constexpr bool kScaleOf16 = true;

  static inline void open(const std::byte* p0, const std::byte* p1, GridUnit<8>* out) {
    const __m512i index = join_halves(p0 + offsetof(Block, qs), p1 + offsetof(Block, qs));
    const __m512i signs = join_halves(p0 + offsetof(Block, signs), p1 + offsetof(Block, signs));
    // A byte of qh serves four groups.
    const __m512i qh = _mm512_cvtepu8_epi32(join_eights(p0 + offsetof(Block, qh), p1 + offsetof(Block, qh)));
    const __m512i each =
        _mm512_shuffle_epi8(qh, _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0x00000000)));
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const __mmask64 bit8 = _mm512_test_epi8_mask(each, _mm512_set1_epi32(0x40100401));
    const __mmask64 bit9 = _mm512_test_epi8_mask(each, _mm512_set1_epi32(static_cast<int>(0x80200802)));
    open_groups_of_8(look_up_1024(kGridIQ2_S[0], index, bit7, bit8, bit9),
                     look_up_1024(kGridIQ2_S[1], index, bit7, bit8, bit9), signs, out);
    out->scale = odd_nibbles(join_eights(p0 + offsetof(Block, scales), p1 + offsetof(Block, scales)));
  }
};

struct GridIQ3_XXS {
  using Block = BlockIQ3_XXS;
  static constexpr int kParts = 4;
  static constexpr bool kScaleOf16 = false;

  static inline void open(const std::byte* p, const std::byte*, GridUnit<4>* out) {
    const __m512i index = load_512(p + offsetof(Block, qs));
    const auto* packed = reinterpret_cast<const __m256i*>(p + offsetof(Block, signs_scales));
    const __m512i aux = _mm512_cvtepu32_epi64(_mm256_loadu_si256(packed));
    const __m512i sevens = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x15150e0e07070000), aux);
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    open_groups_of_4(look_up_256(kGridIQ3_XXS[0], index, bit7), look_up_256(kGridIQ3_XXS[1], index, bit7),
                     look_up_128(kEvenSigns, sevens), kIQ3_XXSValues, out);
    const __m512i sc = _mm512_srli_epi32(aux, 28);
    out->scale = odd_dwords(_mm512_or_si512(sc, _mm512_slli_epi64(sc, 32)));
  }
};

struct GridIQ3_S {
  using Block = BlockIQ3_S;
  static constexpr int kParts = 4;
  static constexpr bool kScaleOf16 = false;

  static inline void open(const std::byte* p, const std::byte*, GridUnit<4>* out) {
    const __m512i index = load_512(p + offsetof(Block, qs));
    uint64_t bit8;
    std::memcpy(&bit8, p + offsetof(Block, qh), 8);
    const auto* packed = reinterpret_cast<const __m256i*>(p + offsetof(Block, signs));
    const __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256(packed));
    const __m512i signs = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 8));
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    open_groups_of_4(look_up_512(kGridIQ3_S[0], index, bit7, bit8), look_up_512(kGridIQ3_S[1], index, bit7, bit8),
                     signs, kIQ3_SValues, out);
    const __m512i nibbles = _mm512_set1_epi32(load_i32(p + offsetof(Block, scales)));
    const __m512i by = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
    out->scale = odd_dwords(_mm512_and_si512(_mm512_srlv_epi32(nibbles, by), _mm512_set1_epi32(15)));
  }
};

}  // namespace
}  // namespace expertree::avx512

#endif
