// Products of the K-quants and IQ4_XS with int8 activations, AVX2 (kernel_q256.h).
#include "cpp/kernels/avx2/panel_q256.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

namespace expertree::avx2 {
namespace {

// The formats. A reader is made per block; chunk<i>() gives elements 32i .. 32i + 31 as bytes, i in increasing order.

struct FormatQ2_K : HalfD<BlockQ2_K> {
  static constexpr Weights kWeights = Weights::kUnsigned;
  static constexpr int kMaxStored = 3;
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
    return {{}, block, sc, mn, spread(sc)};
  }
  template <int kChunk>
  __m256i chunk() const {
    return low_bits(_mm256_srli_epi16(load_256(block->qs + kChunk / 4 * 32), kChunk % 4 * 2), 3);
  }
};

struct FormatQ3_K : HalfD<BlockQ3_K> {
  static constexpr Weights kWeights = Weights::kUnsigned;
  static constexpr int kMaxStored = 7;
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
    return {{}, block, sc, sc, spread(sc)};
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
// From the first 16 bytes of a block.
inline ScalesAndMins unpack_scales_mins(const void* block) {
  static_assert(offsetof(BlockQ4_K, scales) == 4 && offsetof(BlockQ5_K, scales) == 4);
  const __m128i v = load_128(block);
  const __m128i six = _mm_set1_epi32(0x3f3f3f3f), four = _mm_set1_epi32(0x0f0f0f0f);
  // Scales 0-3 and minimums 0-3 are whole; of the others the last four bytes hold low and high nibbles.
  const __m128i low = _mm_shuffle_epi8(v, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m128i nibbles = _mm_blend_epi16(low, _mm_srli_epi16(low, 4), 0xc0);
  const __m128i upper =
      _mm_shuffle_epi8(_mm_srli_epi16(v, 2), _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
  const __m128i bytes =
      _mm_or_si128(_mm_and_si128(nibbles, _mm_unpacklo_epi32(six, four)), _mm_and_si128(upper, _mm_set1_epi8(0x30)));
  const __m256i both = _mm256_cvtepu8_epi16(bytes);
  const __m256i mins = _mm256_permute4x64_epi64(both, 0xfa);  // 0-3 in the low half, 4-7 in the high one
  return {_mm256_castsi256_si128(both), _mm256_unpacklo_epi16(mins, mins)};
}

struct FormatQ4_K : HalfD<BlockQ4_K> {
  static constexpr Weights kWeights = Weights::kUnsigned;
  static constexpr int kMaxStored = 15;
  static constexpr bool kHasMin = true;
  static constexpr int kOffsetShift = -1;
  const Block* block;
  __m256i mins16;
  Scales8 scales;

  static FormatQ4_K open(const Block* block) {
    const ScalesAndMins both = unpack_scales_mins(block);
    return {{}, block, both.mins16, spread(both.scales)};
  }
  template <int kChunk>
  __m256i chunk() const {
    return low_bits(_mm256_srli_epi16(load_256(block->qs + kChunk / 2 * 32), kChunk % 2 * 4), 15);
  }
};

struct FormatQ5_K : HalfD<BlockQ5_K> {
  static constexpr Weights kWeights = Weights::kUnsigned;
  static constexpr int kMaxStored = 31;
  static constexpr bool kHasMin = true;
  static constexpr int kOffsetShift = -1;
  const Block* block;
  __m256i mins16;
  Scales8 scales;

  static FormatQ5_K open(const Block* block) {
    const ScalesAndMins both = unpack_scales_mins(block);
    return {{}, block, both.mins16, spread(both.scales)};
  }
  template <int kChunk>
  __m256i chunk() const {
    const __m256i low = low_bits(_mm256_srli_epi16(load_256(block->qs + kChunk / 2 * 32), kChunk % 2 * 4), 15);
    return _mm256_or_si256(low, move_bit<kChunk, 4>(load_256(block->qh)));
  }
};

struct FormatQ6_K : HalfD<BlockQ6_K> {
  static constexpr Weights kWeights = Weights::kUnsigned;
  static constexpr int kMaxStored = 63;
  static constexpr bool kHasMin = false;
  static constexpr int kOffsetShift = 5;  // w = stored - 32
  const Block* block;
  __m256i scales16;
  __m256i mins16;
  Scales16 scales;

  static FormatQ6_K open(const Block* block) {
    const __m256i sc = _mm256_cvtepi8_epi16(load_128(block->scales));
    return {{}, block, sc, sc, spread(sc)};
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

struct FormatIQ4_XS : HalfD<BlockIQ4_XS> {
  static constexpr Weights kWeights = Weights::kSigned;
  static constexpr int kMaxStored = 127;
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
    return {{}, block, spread(_mm_sub_epi16(_mm_or_si128(_mm_cvtepu8_epi16(low), high), _mm_set1_epi16(32)))};
  }
  template <int kChunk>
  __m256i chunk() const {
    const __m128i bytes = load_128(block->qs + kChunk * 16);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_128(kIQ4Values)), low_bits(both, 15));
  }
};

}  // namespace

void matmul_q2_k(const MatmulArgs& args) { matmul<Kernel<FormatQ2_K>, Panel256<FormatQ2_K>>(args); }
void matmul_q3_k(const MatmulArgs& args) { matmul<Kernel<FormatQ3_K>, Panel256<FormatQ3_K>>(args); }
void matmul_q4_k(const MatmulArgs& args) { matmul<Kernel<FormatQ4_K>, Panel256<FormatQ4_K>>(args); }
void matmul_q5_k(const MatmulArgs& args) { matmul<Kernel<FormatQ5_K>, Panel256<FormatQ5_K>>(args); }
void matmul_q6_k(const MatmulArgs& args) { matmul<Kernel<FormatQ6_K>, Panel256<FormatQ6_K>>(args); }
void matmul_iq4_xs(const MatmulArgs& args) { matmul<Kernel<FormatIQ4_XS>, Panel256<FormatIQ4_XS>>(args); }

}  // namespace expertree::avx2

#endif
