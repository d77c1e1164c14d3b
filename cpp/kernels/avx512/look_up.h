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

// Place of the high byte's value from the entry of a pair of indices: vpavgb adds one, then halves.
inline __m512i place_of(__m512i pair, __m512i index) {
  return _mm512_avg_epu8(pair, _mm512_and_si512(index, _mm512_set1_epi8(1)));
}
inline TwoBytes look_up(const uint8_t (&low)[1024], const GridSteps& high, __m512i index, __mmask64 bit8,
                        __mmask64 bit9) {
  const Quarters quarters = quarters_of(index);
  const Quarters of_pairs = {quarters.bit7, bit8, _kand_mask64(quarters.bit7, bit8)};
  const __m512i pair = look_up_halves(high.pairs, _mm512_srli_epi16(index, 1), of_pairs, bit9);
  const __m512i upper = look_up_halves(low + 512, index, quarters, bit8);
  return {_mm512_mask_mov_epi8(look_up_halves(low, index, quarters, bit8), bit9, upper),
          _mm512_permutex2var_epi8(load_512(high.values), place_of(pair, index), load_512(high.values + 64))};
}

}  // namespace
}  // namespace expertree::avx512

#endif
