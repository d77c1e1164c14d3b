// Blocks of the code-book formats in registers, without a gather: indices of 64 groups are looked up in byte tables
// (look_up.h), which gives each element's place among the grid's values (open_groups.h).
//
// A unit is 64 groups: two blocks of 32 groups of 8 elements (IQ2), or one block of 64 groups of 4 (IQ3).
#pragma once

#include "cpp/kernels/avx512/block_fields.h"
#include "cpp/kernels/avx512/open_groups.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/integer_blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

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

struct GridIQ2_XXS : GroupsOf8 {
  using Block = BlockIQ2_XXS;
  static constexpr bool kScaleOf16 = false;

  static inline GridCodes read(const std::byte* p0, const std::byte* p1) {
    const __m512i a = load_512(p0 + offsetof(Block, qs));
    const __m512i b = load_512(p1 + offsetof(Block, qs));
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i index = _mm512_permutex2var_epi32(a, even, b);
    const __m512i aux = _mm512_permutex2var_epi32(a, _mm512_or_si512(even, _mm512_set1_epi32(1)), b);
    const __m512i sevens = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352e2720150e0700), aux);
    return {look_up(kGridIQ2_XXS, index), even_signs<0>(sevens), odd_dwords(_mm512_srli_epi32(aux, 28))};
  }
};

struct GridIQ2_XS : GroupsOf8 {
  using Block = BlockIQ2_XS;
  static constexpr bool kScaleOf16 = true;

  static inline GridCodes read(const std::byte* p0, const std::byte* p1) {
    const __m512i a = load_512(p0 + offsetof(Block, qs));
    const __m512i b = load_512(p1 + offsetof(Block, qs));
    const __m512i even = every_other_byte();
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
    const __m512i index = bytes_of_both(a, even, b);
    const __m512i upper = bytes_of_both(a, odd, b);
    const __mmask64 bit8 = _mm512_test_epi8_mask(upper, _mm512_set1_epi8(1));
    return {look_up(kGridIQ2_XS, index, bit8), even_signs<1>(upper),
            odd_nibbles(p0 + offsetof(Block, scales), p1 + offsetof(Block, scales))};
  }
};

struct GridIQ2_S : GroupsOf8 {
  using Block = BlockIQ2_S;
  static constexpr bool kScaleOf16 = true;

  static inline GridCodes read(const std::byte* p0, const std::byte* p1) {
    const __m512i index = join_halves(p0 + offsetof(Block, qs), p1 + offsetof(Block, qs));
    const __m512i signs = join_halves(p0 + offsetof(Block, signs), p1 + offsetof(Block, signs));
    // Bits 8 and 9 of each group's index alternate in qh.
    uint64_t qh0, qh1;
    std::memcpy(&qh0, p0 + offsetof(Block, qh), 8);
    std::memcpy(&qh1, p1 + offsetof(Block, qh), 8);
    constexpr uint64_t kEven = 0x5555555555555555;
    const __mmask64 bit8 = _pext_u64(qh0, kEven) | _pext_u64(qh1, kEven) << 32;
    const __mmask64 bit9 = _pext_u64(qh0, ~kEven) | _pext_u64(qh1, ~kEven) << 32;
    return {look_up(kGridIQ2_S[0], kStepsIQ2_S, index, bit8, bit9), signs,
            odd_nibbles(p0 + offsetof(Block, scales), p1 + offsetof(Block, scales))};
  }
};

struct GridIQ3_XXS : GroupsOf4 {
  using Block = BlockIQ3_XXS;
  static constexpr bool kScaleOf16 = false;

  static inline GridCodes read(const std::byte* p, const std::byte*) {
    const __m512i index = load_512(p + offsetof(Block, qs));
    const auto* packed = reinterpret_cast<const __m256i*>(p + offsetof(Block, signs_scales));
    const __m512i aux = _mm512_cvtepu32_epi64(_mm256_loadu_si256(packed));
    const __m512i sevens = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x15150e0e07070000), aux);
    // The upper four signs of a byte are those of the second of two groups.
    const __m512i twice = even_signs<0>(sevens);
    const __m512i signs = _mm512_mask_mov_epi8(twice, 0xaaaaaaaaaaaaaaaa, _mm512_srli_epi16(twice, 4));
    const __m512i sc = _mm512_srli_epi32(aux, 28);
    return {look_up(kGridIQ3_XXS, index), signs, odd_dwords(_mm512_or_si512(sc, _mm512_slli_epi64(sc, 32)))};
  }
};

struct GridIQ3_S : OddGroupsOf4 {
  using Block = BlockIQ3_S;
  static constexpr bool kScaleOf16 = false;

  static inline GridCodes read(const std::byte* p, const std::byte*) {
    const __m512i index = load_512(p + offsetof(Block, qs));
    uint64_t bit8;
    std::memcpy(&bit8, p + offsetof(Block, qh), 8);
    const auto* packed = reinterpret_cast<const __m256i*>(p + offsetof(Block, signs));
    const __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256(packed));
    const __m512i signs = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));  // the lower four bits of each byte
    const __m512i nibbles = _mm512_set1_epi32(load_i32(p + offsetof(Block, scales)));
    const __m512i by = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
    return {look_up(kGridIQ3_S, index, bit8), signs,
            odd_dwords(_mm512_and_si512(_mm512_srlv_epi32(nibbles, by), _mm512_set1_epi32(15)))};
  }
};

}  // namespace
}  // namespace expertree::avx512

#endif
