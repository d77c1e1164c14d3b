// Moving the bytes of 16 weight rows into registers where a lane is a row.
#pragma once

#include <cstring>

#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kPanelRows = 16;

inline __m512i load_512(const void* p) { return _mm512_loadu_si512(p); }
inline __m512i and_bytes(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
inline __m512i low_nibbles(__m512i v) { return and_bytes(v, 15); }
inline __m512i high_nibbles(__m512i v) { return and_bytes(_mm512_srli_epi16(v, 4), 15); }

// row(r) gives 16 bytes of each of 16 rows; lane r of out[t] is bytes 4t .. 4t+3 of row r.
template <typename Row>
inline __attribute__((always_inline)) void transpose_rows(const Row& row, __m512i (&out)[4]) {
  __m512i v[4];  // 128-bit lane L of v[i] is row 4L + i
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_castsi128_si512(row(i));
    v[i] = _mm512_inserti32x4(v[i], row(i + 4), 1);
    v[i] = _mm512_inserti32x4(v[i], row(i + 8), 2);
    v[i] = _mm512_inserti32x4(v[i], row(i + 12), 3);
  }
  const __m512i t0 = _mm512_unpacklo_epi32(v[0], v[1]);
  const __m512i t1 = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i t2 = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i t3 = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = _mm512_unpacklo_epi64(t0, t1);
  out[1] = _mm512_unpackhi_epi64(t0, t1);
  out[2] = _mm512_unpacklo_epi64(t2, t3);
  out[3] = _mm512_unpackhi_epi64(t2, t3);
}

// The same from rows that lie `stride` bytes apart.
inline void load_rows(const std::byte* p, int64_t stride, __m512i (&out)[4]) {
  transpose_rows([&](int r) { return load_16_bytes(p + r * stride); }, out);
}

// One T from each of 16 rows.
template <typename T>
inline void copy_from_rows(const std::byte* p, int64_t stride, T* out) {
#pragma GCC unroll 16
  for (int r = 0; r < kPanelRows; ++r) std::memcpy(out + r, p + r * stride, sizeof(T));
}

// 0, 2, .. 126: the bytes of two registers that vpermt2b takes apart.
inline __m512i every_other_byte() {
  const __m512i words = _mm512_cvtepu8_epi16(
      _mm256_setr_epi64x(0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x1716151413121110, 0x1f1e1d1c1b1a1918));
  const __m512i steps = _mm512_slli_epi16(words, 2);  // 4 * i in byte 2 * i
  return _mm512_or_si512(steps, _mm512_slli_epi16(_mm512_add_epi16(steps, _mm512_set1_epi16(2)), 8));
}

// In every dword, by vpshufb: a control byte of 0x80 gives zero, another counts from the dword's first byte.
inline __m512i pick_bytes(__m512i v, uint32_t control) {
  const __m128i dwords = _mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  const __m128i controls = _mm_add_epi8(_mm_set1_epi32(static_cast<int32_t>(control)), dwords);
  return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(controls));
}
inline __m512i unsigned_byte(__m512i v, unsigned j) { return pick_bytes(v, 0x80808000u | j); }
inline __m512i signed_byte_as_int16(__m512i v, unsigned j) {  // and zero above
  return _mm512_srai_epi16(pick_bytes(v, 0x80800080u | j << 8), 8);
}
inline __m512i signed_byte_as_int32(__m512i v, unsigned j) {
  return _mm512_srai_epi32(pick_bytes(v, 0x00808080u | j << 24), 24);
}
inline __m512i byte_pair(__m512i v, unsigned j, unsigned k) {  // two uint16
  return pick_bytes(v, 0x80008000u | j | k << 16);
}

// Halves in the low or high 16 bits of 16 lanes.
inline __m512 low_halves(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
inline __m512 high_halves(__m512i v) { return low_halves(_mm512_srli_epi32(v, 16)); }

// As e8m0_to_float_half: 2^(e - 128).
inline __m512 e8m0_halves(__m128i bytes) {
  const __m512i e = _mm512_cvtepu8_epi32(bytes);
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __mmask16 tiny = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
  return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, tiny, _mm512_set1_epi32(0x00200000), e));
}

}  // namespace
}  // namespace expertree::avx512

#endif
