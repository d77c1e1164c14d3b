// Fields of code-book blocks, taken from two blocks at once and spread over a register.
#pragma once

#include "cpp/kernels/avx512/panel_bytes.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

inline __m512i join_halves(const std::byte* p0, const std::byte* p1) {  // 32 bytes of each
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p0));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p1)), 1);
}
inline __m512i odd_dwords(__m512i x) { return _mm512_or_si512(_mm512_slli_epi32(x, 1), _mm512_set1_epi32(1)); }

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

}  // namespace
}  // namespace expertree::avx512

#endif
