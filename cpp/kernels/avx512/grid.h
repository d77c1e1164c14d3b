// Blocks of the code-book formats in registers, without a gather: indices of 64 groups are looked up in byte tables
// (look_up.h), which gives each element's place among the grid's values.
//
// A unit is 64 groups: two blocks of 32 groups of 8 elements (IQ2), or one block of 64 groups of 4 (IQ3). Part e of a
// unit is element e of every group, so that the four bytes of a dword, four neighbouring groups, share a scale.
#pragma once

#include "cpp/kernels/avx512/look_up.h"
#include "cpp/kernels/avx512/panel_bytes.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/integer_blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

inline __m512i join_halves(const std::byte* p0, const std::byte* p1) {  // 32 bytes of each
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p0));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p1)), 1);
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

constexpr int kGridOffset = 64;  // makes the values unsigned

// A unit, with its scales ready to be multiplied with the unit's sums.
template <int kParts>
struct GridUnit {
  __m512i part[kParts];  // value + kGridOffset
  __m512i scale;         // int32 per dword, or (IQ2_XS, IQ2_S) int16 per two groups
};

// IQ2: codes of two bits, low: elements 0-3 of every group, high: 4-7; signs: a byte for each group. Two codes and two
// signs are a 6-bit index into the values of the first, and of the second; vpermb does not read the bits above.
inline void open_groups_of_8(TwoBytes codes, __m512i signs, GridUnit<8>* out) {
  alignas(64) static constexpr uint8_t kFirst[64] = {
      72, 89, 107, 64, 72, 89, 107, 64, 72, 89, 107, 64, 72,  89, 107, 64, 56,  39, 21, 64, 56,  39,
      21, 64, 56,  39, 21, 64, 56,  39, 21, 64, 72,  89, 107, 64, 72,  89, 107, 64, 72, 89, 107, 64,
      72, 89, 107, 64, 56, 39, 21,  64, 56, 39, 21,  64, 56,  39, 21,  64, 56,  39, 21, 64};
  alignas(64) static constexpr uint8_t kSecond[64] = {
      72, 72, 72,  72,  89,  89,  89, 89, 107, 107, 107, 107, 64, 64, 64, 64, 72, 72, 72, 72, 89, 89,
      89, 89, 107, 107, 107, 107, 64, 64, 64,  64,  56,  56,  56, 56, 39, 39, 39, 39, 21, 21, 21, 21,
      64, 64, 64,  64,  56,  56,  56, 56, 39,  39,  39,  39,  21, 21, 21, 21, 64, 64, 64, 64};
  const __m512i first = _mm512_load_si512(kFirst);
  const __m512i second = _mm512_load_si512(kSecond);
  const __m512i pairs[4] = {codes.low, _mm512_srli_epi16(codes.low, 4), codes.high, _mm512_srli_epi16(codes.high, 4)};
  const __m512i both_signs[4] = {_mm512_slli_epi16(signs, 4), _mm512_slli_epi16(signs, 2), signs,
                                 _mm512_srli_epi16(signs, 2)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    // Bits 0-3 of the codes, the others of the signs.
    const __m512i index = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), pairs[i], both_signs[i], 0xca);
    out->part[2 * i] = _mm512_permutexvar_epi8(index, first);
    out->part[2 * i + 1] = _mm512_permutexvar_epi8(index, second);
  }
}

// IQ3: codes in nibbles of three bits, low: elements 0 and 1 of every group, high: 2 and 3; signs: four bits for each
// group. A code and, in bit 3, its sign index 16 entries, which are there four times.
inline void open_groups_of_4(TwoBytes codes, __m512i signs, const int8_t (&values)[8], GridUnit<4>* out) {
  const __m128i plus = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(values));
  const __m128i both = _mm_unpacklo_epi64(plus, _mm_sub_epi8(_mm_setzero_si128(), plus));
  const __m512i table = _mm512_broadcast_i32x4(_mm_add_epi8(both, _mm_set1_epi8(kGridOffset)));
  const __m512i code[4] = {codes.low, _mm512_srli_epi16(codes.low, 4), codes.high, _mm512_srli_epi16(codes.high, 4)};
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {
    const __m512i sign = _mm512_slli_epi16(signs, 3 - static_cast<unsigned>(e));
    const __m512i index = _mm512_ternarylogic_epi32(_mm512_set1_epi8(8), sign, code[e], 0xca);
    out->part[e] = _mm512_permutexvar_epi8(index, table);
  }
}

// Bits kFrom .. kFrom + 6 of every byte are seven signs: with the eighth, which makes their number even, they are a
// linear map of the byte's bits (byte 7 - i of the matrix gives bit i).
template <int kFrom>
inline __m512i even_signs(__m512i sevens) {
  static_assert(kFrom == 0 || kFrom == 1);
  const int64_t map = kFrom == 0 ? 0x010204081020407f : 0x02040810204080fe;
  return _mm512_gf2p8affine_epi64_epi8(sevens, _mm512_set1_epi64(map), 0);
}

// 32 bytes of a and 32 of b.
inline __m512i bytes_of_both(__m512i a, __m512i which, __m512i b) {
  const __m512i of_a = _mm512_permutexvar_epi8(which, a);
  return _mm512_mask_permutexvar_epi8(of_a, 0xffffffff00000000, which, b);
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
    open_groups_of_8(look_up(kGridIQ2_XXS, index), even_signs<0>(sevens), out);
    out->scale = odd_dwords(_mm512_srli_epi32(aux, 28));
  }
};

// Nibbles of 8 bytes from each block as 32 int16, each doubled plus one.
inline __m512i odd_nibbles(const std::byte* p0, const std::byte* p1) {
  int64_t low, high;
  std::memcpy(&low, p0, 8);
  std::memcpy(&high, p1, 8);
  const __m512i both = _mm512_mask_set1_epi64(_mm512_set1_epi64(low), 0xf0, high);
  // Word w of a block is bits 4 w - 1 and on: its nibble lies at bit 1. Four words are a lane; the bytes between them
  // are masked away.
  const __m512i from = _mm512_set_epi64(0x003b00370033002f, 0x002b00270023001f, 0x001b00170013000f, 0x000b00070003003f,
                                        0x003b00370033002f, 0x002b00270023001f, 0x001b00170013000f, 0x000b00070003003f);
  const __m512i nibbles = _mm512_multishift_epi64_epi8(from, both);
  return _mm512_ternarylogic_epi32(nibbles, _mm512_set1_epi16(30), _mm512_set1_epi16(1), 0xea);  // (a & b) | c
}

struct GridIQ2_XS {
  using Block = BlockIQ2_XS;
  static constexpr int kParts = 8;
  static constexpr bool kScaleOf16 = true;

  static inline void open(const std::byte* p0, const std::byte* p1, GridUnit<8>* out) {
    const __m512i a = load_512(p0 + offsetof(Block, qs));
    const __m512i b = load_512(p1 + offsetof(Block, qs));
    const __m512i even = every_other_byte();
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
    const __m512i index = bytes_of_both(a, even, b);
    const __m512i upper = bytes_of_both(a, odd, b);
    const __mmask64 bit8 = _mm512_test_epi8_mask(upper, _mm512_set1_epi8(1));
    open_groups_of_8(look_up(kGridIQ2_XS, index, bit8), even_signs<1>(upper), out);
    out->scale = odd_nibbles(p0 + offsetof(Block, scales), p1 + offsetof(Block, scales));
  }
};

struct GridIQ2_S {
  using Block = BlockIQ2_S;
  static constexpr int kParts = 8;
  static constexpr bool kScaleOf16 = true;

  static inline void open(const std::byte* p0, const std::byte* p1, GridUnit<8>* out) {
    const __m512i index = join_halves(p0 + offsetof(Block, qs), p1 + offsetof(Block, qs));
    const __m512i signs = join_halves(p0 + offsetof(Block, signs), p1 + offsetof(Block, signs));
    // Bits 8 and 9 of each group's index alternate in qh.
    uint64_t qh0, qh1;
    std::memcpy(&qh0, p0 + offsetof(Block, qh), 8);
    std::memcpy(&qh1, p1 + offsetof(Block, qh), 8);
    constexpr uint64_t kEven = 0x5555555555555555;
    const __mmask64 bit8 = _pext_u64(qh0, kEven) | _pext_u64(qh1, kEven) << 32;
    const __mmask64 bit9 = _pext_u64(qh0, ~kEven) | _pext_u64(qh1, ~kEven) << 32;
    open_groups_of_8(look_up(kGridIQ2_S, index, bit8, bit9), signs, out);
    out->scale = odd_nibbles(p0 + offsetof(Block, scales), p1 + offsetof(Block, scales));
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
    // The upper four signs of a byte are those of the second of two groups.
    const __m512i twice = even_signs<0>(sevens);
    const __m512i signs = _mm512_mask_mov_epi8(twice, 0xaaaaaaaaaaaaaaaa, _mm512_srli_epi16(twice, 4));
    open_groups_of_4(look_up(kGridIQ3_XXS, index), signs, kIQ3_XXSValues, out);
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
    const __m512i signs = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));  // the lower four bits of each byte
    open_groups_of_4(look_up(kGridIQ3_S, index, bit8), signs, kIQ3_SValues, out);
    const __m512i nibbles = _mm512_set1_epi32(load_i32(p + offsetof(Block, scales)));
    const __m512i by = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
    out->scale = odd_dwords(_mm512_and_si512(_mm512_srlv_epi32(nibbles, by), _mm512_set1_epi32(15)));
  }
};

}  // namespace
}  // namespace expertree::avx512

#endif
