// Byte tables of 256 to 1024 entries looked up in registers, 64 indices at a time.
#pragma once

#include "cpp/kernels/avx512/panel_bytes.h"
#include "cpp/tensor/iq_grids.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// What two tables of kEntries hold at each index, whose bits 0-7 are given as bytes, 8 and 9 as masks.
struct TwoBytes {
  __m512i low, high;
};
inline TwoBytes look_up(const uint8_t (&tables)[2][256], __m512i index) {
  const __mmask64 bit7 = _mm512_movepi8_mask(index);
  const auto in = [&](const uint8_t* table) {
    const __m512i lower = _mm512_permutex2var_epi8(load_512(table), index, load_512(table + 64));
    const __m512i upper = _mm512_permutex2var_epi8(load_512(table + 128), index, load_512(table + 192));
    return _mm512_mask_mov_epi8(lower, bit7, upper);
  };
  return {in(tables[0]), in(tables[1])};
}
// Larger ones: vpermb takes 64 entries at a time and merges under a mask, which costs less than vpermi2b and a blend. A
// later merge overwrites an earlier one, so that only its own bits need be in its mask.
struct Quarters {  // which bits of each index are set
  __mmask64 bit6, bit7, both;
};
inline Quarters quarters_of(__m512i index) {
  const __mmask64 bit7 = _mm512_movepi8_mask(index);
  const __mmask64 bit6 = _mm512_movepi8_mask(_mm512_add_epi8(index, index));
  return {bit6, bit7, _kand_mask64(bit6, bit7)};
}
inline __m512i look_up_quarters(const uint8_t* table, __m512i index, const Quarters& quarters) {
  __m512i out = _mm512_permutexvar_epi8(index, load_512(table));
  out = _mm512_mask_permutexvar_epi8(out, quarters.bit6, index, load_512(table + 64));
  out = _mm512_mask_permutexvar_epi8(out, quarters.bit7, index, load_512(table + 128));
  return _mm512_mask_permutexvar_epi8(out, quarters.both, index, load_512(table + 192));
}
// 512 entries, in the upper half where `upper` is set.
inline __m512i look_up_halves(const uint8_t* table, __m512i index, const Quarters& quarters, __mmask64 upper) {
  return _mm512_mask_mov_epi8(look_up_quarters(table, index, quarters), upper,
                              look_up_quarters(table + 256, index, quarters));
}
inline TwoBytes look_up(const uint8_t (&tables)[2][512], __m512i index, __mmask64 bit8) {
  const Quarters quarters = quarters_of(index);
  return {look_up_halves(tables[0], index, quarters, bit8), look_up_halves(tables[1], index, quarters, bit8)};
}

inline TwoBytes look_up(const uint8_t (&low_table)[1024], const GridSteps& steps, __m512i index, __mmask64 bit8,
                        __mmask64 bit9) {
  const Quarters quarters = quarters_of(index);
  const __m512i upper = look_up_halves(low_table + 512, index, quarters, bit8);
  const __m512i low = _mm512_mask_mov_epi8(look_up_halves(low_table, index, quarters, bit8), bit9, upper);
  const Quarters of_quads = {bit8, bit9, _kand_mask64(bit8, bit9)};
  const __m512i quad = look_up_quarters(steps.quads, _mm512_srli_epi16(index, 2), of_quads);
  const __m512i place = _mm512_srli_epi16(_mm512_add_epi8(quad, and_bytes(index, 3)), 2);
  // The number of ones in low, odd or even, to bits 0 and 1.
  const __m512i odd = _mm512_gf2p8affine_epi64_epi8(low, _mm512_set1_epi64(0x5555000000000000), 0);
  return {low, _mm512_xor_si512(odd, _mm512_permutexvar_epi8(place, load_512(steps.values)))};
}

}  // namespace
}  // namespace expertree::avx512

#endif
