// Codes and signs of 64 groups to bytes that meet activations. Part e has element e of every group, as value + kOffset, so
// that the four bytes of a dword are of four neighbouring groups.
#pragma once

#include "cpp/kernels/avx512/look_up.h"
#include "cpp/tensor/iq_grids.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

struct GridCodes {
  TwoBytes codes;
  __m512i signs;
  __m512i scale;  // int32 per dword, or (kScaleOf16) int16 per two groups
};

// The matrix with which vgf2p8affineqb takes bit i of a byte from bit from[i], or clears it (-1).
constexpr int64_t bits_from(const int (&from)[8]) {
  uint64_t matrix = 0;
  for (int i = 0; i < 8; ++i) {
    if (from[i] >= 0) matrix |= uint64_t{1} << (8 * (7 - i) + from[i]);
  }
  return static_cast<int64_t>(matrix);
}

// IQ2: codes of two bits, low: elements 0-3 of every group, high: 4-7; signs: a byte for each group. Two codes and two
// signs are a 6-bit index into the values of the first, and of the second; vpermb does not read the bits above.
struct GroupsOf8 {
  static constexpr int kParts = 8;
  static constexpr int kOffset = 64;

  static inline void open(const GridCodes& unit, __m512i (&part)[8]) {
    // The lower of two nibbles is met by signs above it, the upper one by signs below it: so each needs one shift at most.
    const __m512i first = _mm512_load_si512(kFirst.signs_above), second = _mm512_load_si512(kSecond.signs_above);
    const __m512i upper_first = _mm512_load_si512(kFirst.signs_below);
    const __m512i upper_second = _mm512_load_si512(kSecond.signs_below);
    const __m512i swapped =  // the nibbles of signs
        _mm512_gf2p8affine_epi64_epi8(unit.signs, _mm512_set1_epi64(bits_from({4, 5, 6, 7, 0, 1, 2, 3})), 0);
    const __m512i index[4] = {join(unit.codes.low, swapped), _mm512_srli_epi16(join(unit.signs, unit.codes.low), 2),
                              join(unit.codes.high, unit.signs), _mm512_srli_epi16(join(swapped, unit.codes.high), 2)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      part[2 * i] = _mm512_permutexvar_epi8(index[i], i % 2 == 0 ? first : upper_first);
      part[2 * i + 1] = _mm512_permutexvar_epi8(index[i], i % 2 == 0 ? second : upper_second);
    }
  }

 private:
  struct Table {
    alignas(64) uint8_t signs_above[64];  // codes in bits 0-3, signs in 4 and 5
    alignas(64) uint8_t signs_below[64];  // signs in bits 0 and 1, codes in 2-5
  };
  static constexpr Table table_of(int element) {
    Table out{};
    for (int codes = 0; codes < 16; ++codes) {
      for (int signs = 0; signs < 4; ++signs) {
        const int value = kIQ2Values[codes >> (2 * element) & 3];
        const auto byte = static_cast<uint8_t>(kOffset + ((signs >> element & 1) != 0 ? -value : value));
        out.signs_above[codes | signs << 4] = byte;
        out.signs_below[signs | codes << 2] = byte;
      }
    }
    return out;
  }
  static const Table kFirst, kSecond;

  // The lower nibbles of one, the upper ones of the other.
  static inline __m512i join(__m512i lower, __m512i upper) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), lower, upper, 0xca);
  }
};
constexpr GroupsOf8::Table GroupsOf8::kFirst = GroupsOf8::table_of(0);
constexpr GroupsOf8::Table GroupsOf8::kSecond = GroupsOf8::table_of(1);

// IQ3_XXS: codes in nibbles of three bits, low: elements 0 and 1 of every group, high: 2 and 3; signs: four bits for each
// group. A code and, in bit 3, its sign index 16 entries, which are there four times.
struct GroupsOf4 {
  static constexpr int kParts = 4;
  static constexpr int kOffset = 64;

  static inline void open(const GridCodes& unit, __m512i (&part)[4]) {
    const __m128i plus = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kIQ3_XXSValues));
    const __m128i both = _mm_unpacklo_epi64(plus, _mm_sub_epi8(_mm_setzero_si128(), plus));
    const __m512i table = _mm512_broadcast_i32x4(_mm_add_epi8(both, _mm_set1_epi8(kOffset)));
    const __m512i code[4] = {unit.codes.low, _mm512_srli_epi16(unit.codes.low, 4), unit.codes.high,
                             _mm512_srli_epi16(unit.codes.high, 4)};
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m512i sign = _mm512_slli_epi16(unit.signs, 3 - static_cast<unsigned>(e));
      const __m512i index = _mm512_ternarylogic_epi32(_mm512_set1_epi8(8), sign, code[e], 0xca);
      part[e] = _mm512_permutexvar_epi8(index, table);
    }
  }
};

// IQ3_S, whose values are 2 * code + 1: with bit 3 set, and all four bits flipped under a minus, the code becomes
// (value + 15) / 2. So no table is needed.
struct OddGroupsOf4 {
  static constexpr int kParts = 4;
  static constexpr int kOffset = 15;
  static_assert(kIQ3_SValues[0] == 1 && kIQ3_SValues[7] == 15);

  static inline void open(const GridCodes& unit, __m512i (&part)[4]) {
    const auto flips = [](__m512i signs, int64_t matrix) {
      return _mm512_gf2p8affine_epi64_epi8(signs, _mm512_set1_epi64(matrix), 0);
    };
    const auto doubled = [](__m512i codes, int64_t matrix) {  // with bit 3, which is then 16
      return _mm512_gf2p8affine_epi64_epi8(codes, _mm512_set1_epi64(matrix), 16);
    };
    const __m512i low = _mm512_xor_si512(unit.codes.low, flips(unit.signs, bits_from({0, 0, 0, 0, 1, 1, 1, 1})));
    const __m512i high = _mm512_xor_si512(unit.codes.high, flips(unit.signs, bits_from({2, 2, 2, 2, 3, 3, 3, 3})));
    part[0] = doubled(low, bits_from({-1, 0, 1, 2, 3, -1, -1, -1}));
    part[1] = doubled(low, bits_from({-1, 4, 5, 6, 7, -1, -1, -1}));
    part[2] = doubled(high, bits_from({-1, 0, 1, 2, 3, -1, -1, -1}));
    part[3] = doubled(high, bits_from({-1, 4, 5, 6, 7, -1, -1, -1}));
  }
};

}  // namespace
}  // namespace expertree::avx512

#endif
