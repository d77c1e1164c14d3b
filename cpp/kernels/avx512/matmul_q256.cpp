// Products of the K-quants and IQ4_XS with int8 activations, many columns (format_q256.h).
#include "cpp/kernels/avx512/format_q256.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

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

// d, dmin and the packed six-bit scales and minimums of Q4_K and Q5_K: the first 16 bytes of both blocks. The offset is
// 1 << kShift.
template <unsigned kShift>
inline void expand_scale_min(const std::byte* p, int64_t stride, Scales* out) {
  static_assert(offsetof(BlockQ4_K, scales) == 4 && offsetof(BlockQ4_K, qs) == 16);
  static_assert(offsetof(BlockQ5_K, scales) == 4 && offsetof(BlockQ5_K, qh) == 16);
  __m512i v[4];
  load_rows(p, stride, v);
  const auto upper = [](__m512i x) { return and_bytes(_mm512_srli_epi16(x, 2), 0x30); };
  const __m512i scale[2] = {and_bytes(v[1], 63), _mm512_or_si512(low_nibbles(v[3]), upper(v[1]))};
  const __m512i min[2] = {and_bytes(v[2], 63), _mm512_or_si512(high_nibbles(v[3]), upper(v[2]))};
#pragma GCC unroll 8
  for (unsigned j = 0; j < 8; ++j) _mm512_store_si512(out->scale[j], unsigned_byte(scale[j / 4], j % 4));
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned j = 2 * (i % 2);
    _mm512_store_si512(out->min[i], byte_pair(min[i / 2], j, j + 1));
    _mm512_store_si512(out->back[i], _mm512_slli_epi16(byte_pair(scale[i / 2], j, j + 1), kShift));
  }
  _mm512_store_ps(out->d, low_halves(v[0]));
  _mm512_store_ps(out->dmin, high_halves(v[0]));
}

// With weights from -8 to 7 a sub-block of 32 sums up to 32*8*127, which fits in 16 bits.
struct Q4_K : Format256<Q4_K, BlockQ4_K, Shape{32, 32, true, 8, true, true}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) { expand_scale_min<3>(p, stride, out); }

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

// With weights from -16 to 15 half a sub-block sums up to 16*16*127.
struct Q5_K : Format256<Q5_K, BlockQ5_K, Shape{32, 16, true, 16, true, true}> {
  static void expand_scales(const std::byte* p, int64_t stride, Scales* out) { expand_scale_min<4>(p, stride, out); }

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

void panel_q2_k(const MatmulArgs& args) { matmul<Q2_K>(args); }
void panel_q3_k(const MatmulArgs& args) { matmul<Q3_K>(args); }
void panel_q4_k(const MatmulArgs& args) { matmul<Q4_K>(args); }
void panel_q5_k(const MatmulArgs& args) { matmul<Q5_K>(args); }
void panel_q6_k(const MatmulArgs& args) { matmul<Q6_K>(args); }
void panel_iq4_xs(const MatmulArgs& args) { matmul<IQ4_XS>(args); }

}  // namespace expertree::avx512

#endif
