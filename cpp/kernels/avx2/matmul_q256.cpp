// Products of the 256-element formats with int8 activations (canonical.h, C4), AVX2.
//
// Eight rows advance together. A block is walked in eight chunks of 32 elements; a chunk is expanded once, multiplied
// by up to four columns and scaled by its sub-block's integer scale at once (vpmaddubsw, then vpmaddwd by the scales).
// Offset formats keep their unsigned stored value (at most 63 * 127 * 2 = 16002 per 16-bit pair) and subtract
// offset * sum over j of scale[j] * sums16[j]; IQ4_XS multiplies |w| by q with w's sign (at most 127 * 127 * 2).
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/vector.h"
#include "cpp/tensor/blocks.h"

namespace expertree::avx2 {
namespace {

// Sixteen int16 scales, one per 16 elements, spread over chunks of 32: chunk(i) has scale 2i in its low half and 2i + 1
// in its high half.
struct Scales16 {
  __m256i low;   // scales 0-7 in both halves
  __m256i high;  // scales 8-15 in both halves
};
inline Scales16 spread(__m256i scales) {
  return {_mm256_permute2x128_si256(scales, scales, 0x00), _mm256_permute2x128_si256(scales, scales, 0x11)};
}
template <int kChunk>
inline __m256i chunk_scale(const Scales16& scales) {
  constexpr int16_t kFirst = 0x0100 + 0x0404 * (kChunk % 4);  // the two bytes of scale 2 * (kChunk % 4)
  const __m256i bytes = _mm256_set_m128i(_mm_set1_epi16(kFirst + 0x0202), _mm_set1_epi16(kFirst));
  return _mm256_shuffle_epi8(kChunk < 4 ? scales.low : scales.high, bytes);
}

// Eight int16 scales, one per chunk of 32.
struct Scales8 {
  __m256i both;  // scales 0-7 in both halves
};
inline Scales8 spread(__m128i scales) { return {_mm256_broadcastsi128_si256(scales)}; }
template <int kChunk>
inline __m256i chunk_scale(const Scales8& scales) {
  return _mm256_shuffle_epi8(scales.both, _mm256_set1_epi16(0x0100 + 0x0202 * kChunk));
}

inline __m256i low_bits(__m256i x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(mask))); }

// Bit kFrom of every byte, moved to bit kTo. Shifts of 16 bits carry between bytes only what the mask then drops.
template <int kFrom, int kTo>
inline __m256i move_bit(__m256i x) {
  if constexpr (kFrom > kTo) {
    return low_bits(_mm256_srli_epi16(x, kFrom - kTo), 1 << kTo);
  } else {
    return low_bits(_mm256_slli_epi16(x, kTo - kFrom), 1 << kTo);
  }
}

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}
inline __m128i set_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return _mm_setr_epi32(static_cast<int32_t>(a), static_cast<int32_t>(b), static_cast<int32_t>(c),
                        static_cast<int32_t>(d));
}

// The formats. A reader is made per block; chunk<i>() gives elements 32i .. 32i + 31 as bytes, i in increasing order.

struct FormatQ2_K {
  using Block = BlockQ2_K;
  static constexpr bool kSigned = false;
  static constexpr bool kHasMin = true;
  static constexpr int kOffsetShift = -1;
  const Block* block;
  __m256i scales16;
  __m256i mins16;
  Scales16 scales;

  static FormatQ2_K open(const Block* block) {
    const __m128i packed = load_128(block->scales);
    const __m128i mask = _mm_set1_epi8(15);
    const __m256i sc = _mm256_cvtepu8_epi16(_mm_and_si128(packed, mask));
    const __m256i mn = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(packed, 4), mask));
    return {block, sc, mn, spread(sc)};
  }
  template <int kChunk>
  __m256i chunk() const {
    return low_bits(_mm256_srli_epi16(load_256(block->qs + kChunk / 4 * 32), kChunk % 4 * 2), 3);
  }
};

struct FormatQ3_K {
  using Block = BlockQ3_K;
  static constexpr bool kSigned = false;
  static constexpr bool kHasMin = false;
  static constexpr int kOffsetShift = 2;  // w = stored - 4
  const Block* block;
  __m256i scales16;
  __m256i mins16;
  Scales16 scales;

  static FormatQ3_K open(const Block* block) {
    const uint32_t s0 = load_u32(block->scales);
    const uint32_t s1 = load_u32(block->scales + 4);
    const uint32_t high = load_u32(block->scales + 8);
    constexpr uint32_t kNibbles = 0x0f0f0f0fu;
    constexpr uint32_t kPairs = 0x03030303u;
    const __m128i bytes =
        set_u32((s0 & kNibbles) | (high & kPairs) << 4, (s1 & kNibbles) | (high >> 2 & kPairs) << 4,
                (s0 >> 4 & kNibbles) | (high >> 4 & kPairs) << 4, (s1 >> 4 & kNibbles) | (high >> 6 & kPairs) << 4);
    const __m256i sc = _mm256_cvtepi8_epi16(_mm_sub_epi8(bytes, _mm_set1_epi8(32)));
    return {block, sc, sc, spread(sc)};
  }
  template <int kChunk>
  __m256i chunk() const {
    const __m256i low = low_bits(_mm256_srli_epi16(load_256(block->qs + kChunk / 4 * 32), kChunk % 4 * 2), 3);
    return _mm256_or_si256(low, move_bit<kChunk, 2>(load_256(block->hmask)));
  }
};

// Q4_K and Q5_K: six-bit scales and minimums.
struct ScalesAndMins {
  __m128i scales;  // eight int16
  __m256i mins16;  // sixteen int16: each minimum twice, to meet sums16
};
inline ScalesAndMins unpack_scales_mins(const uint8_t* scales) {
  const uint32_t s0 = load_u32(scales);
  const uint32_t s1 = load_u32(scales + 4);
  const uint32_t s2 = load_u32(scales + 8);
  constexpr uint32_t kNibbles = 0x0f0f0f0fu;
  constexpr uint32_t kPairs = 0x03030303u;
  constexpr uint32_t kSix = 0x3f3f3f3fu;
  const __m256i both = _mm256_cvtepu8_epi16(set_u32(s0 & kSix, (s2 & kNibbles) | (s0 >> 6 & kPairs) << 4, s1 & kSix,
                                                    (s2 >> 4 & kNibbles) | (s1 >> 6 & kPairs) << 4));
  const __m128i mins = _mm256_extracti128_si256(both, 1);
  return {_mm256_castsi256_si128(both),
          _mm256_set_m128i(_mm_unpackhi_epi16(mins, mins), _mm_unpacklo_epi16(mins, mins))};
}

struct FormatQ4_K {
  using Block = BlockQ4_K;
  static constexpr bool kSigned = false;
  static constexpr bool kHasMin = true;
  static constexpr int kOffsetShift = -1;
  const Block* block;
  __m256i mins16;
  Scales8 scales;

  static FormatQ4_K open(const Block* block) {
    const ScalesAndMins both = unpack_scales_mins(block->scales);
    return {block, both.mins16, spread(both.scales)};
  }
  template <int kChunk>
  __m256i chunk() const {
    return low_bits(_mm256_srli_epi16(load_256(block->qs + kChunk / 2 * 32), kChunk % 2 * 4), 15);
  }
};

struct FormatQ5_K {
  using Block = BlockQ5_K;
  static constexpr bool kSigned = false;
  static constexpr bool kHasMin = true;
  static constexpr int kOffsetShift = -1;
  const Block* block;
  __m256i mins16;
  Scales8 scales;

  static FormatQ5_K open(const Block* block) {
    const ScalesAndMins both = unpack_scales_mins(block->scales);
    return {block, both.mins16, spread(both.scales)};
  }
  template <int kChunk>
  __m256i chunk() const {
    const __m256i low = low_bits(_mm256_srli_epi16(load_256(block->qs + kChunk / 2 * 32), kChunk % 2 * 4), 15);
    return _mm256_or_si256(low, move_bit<kChunk, 4>(load_256(block->qh)));
  }
};

struct FormatQ6_K {
  using Block = BlockQ6_K;
  static constexpr bool kSigned = false;
  static constexpr bool kHasMin = false;
  static constexpr int kOffsetShift = 5;  // w = stored - 32
  const Block* block;
  __m256i scales16;
  __m256i mins16;
  Scales16 scales;

  static FormatQ6_K open(const Block* block) {
    const __m256i sc = _mm256_cvtepi8_epi16(load_128(block->scales));
    return {block, sc, sc, spread(sc)};
  }
  template <int kChunk>
  __m256i chunk() const {
    constexpr int kHalf = kChunk / 4;
    constexpr int kQuarter = kChunk % 4;
    const __m256i bytes = load_256(block->ql + kHalf * 64 + kQuarter % 2 * 32);
    const __m256i low = low_bits(_mm256_srli_epi16(bytes, kQuarter / 2 * 4), 15);
    const __m256i qh = load_256(block->qh + kHalf * 32);
    const __m256i high =
        kQuarter < 2 ? _mm256_slli_epi16(qh, 4 - kQuarter % 2 * 2) : _mm256_srli_epi16(qh, kQuarter % 2 * 2);
    return _mm256_or_si256(low, low_bits(high, 0x30));
  }
};

struct FormatIQ4_XS {
  using Block = BlockIQ4_XS;
  static constexpr bool kSigned = true;
  static constexpr bool kHasMin = false;
  static constexpr int kOffsetShift = -1;
  const Block* block;
  Scales8 scales;

  static FormatIQ4_XS open(const Block* block) {
    const uint32_t packed = load_u32(block->scales_l);
    const __m128i bytes = _mm_cvtsi32_si128(static_cast<int32_t>(packed));
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i low = _mm_unpacklo_epi8(_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
    // Bits 2s and 2s + 1 of scales_h: moved to the top of lane s by a product, then down.
    const __m128i top = _mm_mullo_epi16(_mm_set1_epi16(static_cast<int16_t>(block->scales_h)),
                                        _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
    const __m128i high = _mm_slli_epi16(_mm_srli_epi16(top, 14), 4);
    return {block, spread(_mm_sub_epi16(_mm_or_si128(_mm_cvtepu8_epi16(low), high), _mm_set1_epi16(32)))};
  }
  template <int kChunk>
  __m256i chunk() const {
    const __m128i bytes = load_128(block->qs + kChunk * 16);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_128(kIQ4Values)), low_bits(both, 15));
  }
};

// Adds chunk kChunk of one block for every column: sum[c] += scale * w * q, eight int32 partial sums.
template <int kChunk, int kN, typename Format>
[[gnu::always_inline]] inline void add_chunk(const Format& block, const Column* x, int64_t element, __m256i* sum) {
  const __m256i w = block.template chunk<kChunk>();
  const __m256i scale = chunk_scale<kChunk>(block.scales);
#pragma GCC unroll 4
  for (int c = 0; c < kN; ++c) {
    const __m256i q = load_256(x[c].q + element + 32 * kChunk);
    const __m256i pairs =
        Format::kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)) : _mm256_maddubs_epi16(w, q);
    sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(pairs, scale));
  }
}

template <typename Format>
struct Kernel {
  using Block = typename Format::Block;

  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t first_column) {
    const RowGroup rows = row_group(args, row);
    Column x[kN];
    __m256 acc[kN];
    for (int c = 0; c < kN; ++c) {
      x[c] = quantized_column(args, first_column + c);
      acc[c] = _mm256_setzero_ps();
    }
    const std::byte* w = rows.w;
    for (int64_t b = 0; b < args.k / 256; ++b, w += sizeof(Block)) {
      __m256i partial[kN][kRows];
      __m256i partial_min[kN][kRows];
      for (int i = 0; i < kRows; ++i) {
        prefetch_next_group(w + rows.offset[i], args.w_row_bytes, sizeof(Block));
        const Format block = Format::open(reinterpret_cast<const Block*>(w + rows.offset[i]));
        __m256i sum[kN];
#pragma GCC unroll 4
        for (int c = 0; c < kN; ++c) sum[c] = _mm256_setzero_si256();
        add_chunk<0, kN>(block, x, 256 * b, sum);
        add_chunk<1, kN>(block, x, 256 * b, sum);
        add_chunk<2, kN>(block, x, 256 * b, sum);
        add_chunk<3, kN>(block, x, 256 * b, sum);
        add_chunk<4, kN>(block, x, 256 * b, sum);
        add_chunk<5, kN>(block, x, 256 * b, sum);
        add_chunk<6, kN>(block, x, 256 * b, sum);
        add_chunk<7, kN>(block, x, 256 * b, sum);
#pragma GCC unroll 4
        for (int c = 0; c < kN; ++c) {
          const __m256i sums16 = load_256(x[c].sums16 + 16 * b);
          if constexpr (Format::kOffsetShift >= 0) {
            const __m256i excess = _mm256_madd_epi16(block.scales16, sums16);
            sum[c] = _mm256_sub_epi32(sum[c], _mm256_slli_epi32(excess, Format::kOffsetShift));
          }
          if constexpr (Format::kHasMin) partial_min[c][i] = _mm256_madd_epi16(block.mins16, sums16);
          partial[c][i] = sum[c];
        }
      }
      const __m256 d = load_halves(w + offsetof(Block, d), rows.offset);
      __m256 dmin = _mm256_setzero_ps();
      if constexpr (Format::kHasMin) dmin = load_halves(w + offsetof(Block, dmin), rows.offset);
      for (int c = 0; c < kN; ++c) {
        const __m256 dx = _mm256_set1_ps(x[c].d[b]);
        acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_eight(partial[c])), _mm256_mul_ps(d, dx), acc[c]);
        if constexpr (Format::kHasMin) {
          const __m256 min = _mm256_cvtepi32_ps(sum_eight(partial_min[c]));
          acc[c] = _mm256_fnmadd_ps(min, _mm256_mul_ps(dmin, dx), acc[c]);
        }
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }
};

}  // namespace

void matmul_q2_k(const MatmulArgs& args) { for_each_group<Kernel<FormatQ2_K>>(args); }
void matmul_q3_k(const MatmulArgs& args) { for_each_group<Kernel<FormatQ3_K>>(args); }
void matmul_q4_k(const MatmulArgs& args) { for_each_group<Kernel<FormatQ4_K>>(args); }
void matmul_q5_k(const MatmulArgs& args) { for_each_group<Kernel<FormatQ5_K>>(args); }
void matmul_q6_k(const MatmulArgs& args) { for_each_group<Kernel<FormatQ6_K>>(args); }
void matmul_iq4_xs(const MatmulArgs& args) { for_each_group<Kernel<FormatIQ4_XS>>(args); }

}  // namespace expertree::avx2

#endif
