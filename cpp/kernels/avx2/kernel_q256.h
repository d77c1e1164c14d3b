// How the AVX2 products of 256-element formats work (canonical.h, C4).
//
// Few columns. Eight rows are read one after the other, as one stream (prefetch.h). A block is walked in eight chunks of 32
// elements; a chunk is expanded once, multiplied by up to four columns and scaled by its sub-block's integer scale at once
// (vpmaddubsw, then vpmaddwd by the scales). Once all rows have their blocks' sums, a lane is a row and the float chain of C4
// runs.
// Offset formats keep their unsigned stored value (at most 63 * 127 * 2 = 16002 per 16-bit pair) and subtract
// offset * sum over j of scale[j] * sums16[j]; signed ones multiply |w| by q with w's sign (at most 127 * 127 * 2).
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/vector.h"
#include "cpp/kernels/prefetch.h"
#include "cpp/tensor/blocks.h"

namespace expertree::avx2 {
namespace {

// Sixteen int16 scales, one per 16 elements, spread over chunks of 32: chunk(i) has scale 2i in its low half and 2i + 1
// in its high half.
struct Scales16 {
  __m256i low;  // scales 0-7 in both halves
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

// What Format::chunk gives, Format::kMaxStored in magnitude at most: a stored value with its offset, the weight itself, or
// its magnitude beside Format::sign.
enum class Weights : uint8_t { kUnsigned, kSigned, kMagnitudes };

// The stored scale d of eight rows.
template <typename Block_>
struct HalfD {
  using Block = Block_;
  static __m256 d(const std::byte* w, const int64_t* offset) { return load_halves(w + offsetof(Block, d), offset); }
};

// Adds chunk kChunk of one block for every column: sum[c] += scale * w * q, eight int32 partial sums.
template <int kChunk, int kN, typename Format>
[[gnu::always_inline]] inline void add_chunk(const Format& block, const Column* x, int64_t element, __m256i* sum) {
  const __m256i w = block.template chunk<kChunk>();
  const __m256i scale = chunk_scale<kChunk>(block.scales);
#pragma GCC unroll 4
  for (int c = 0; c < kN; ++c) {
    const __m256i q = load_256(x[c].q + element + 32 * kChunk);
    __m256i pairs;
    if constexpr (Format::kWeights == Weights::kSigned) {
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
    } else if constexpr (Format::kWeights == Weights::kMagnitudes) {
      pairs = _mm256_maddubs_epi16(w, _mm256_sign_epi8(q, block.template sign<kChunk>()));
    } else {
      pairs = _mm256_maddubs_epi16(w, q);
    }
    sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(pairs, scale));
  }
}

constexpr int kStreamBlocks = 8;  // of each row before the next one is read

template <typename Format>
struct Kernel {
  using Block = typename Format::Block;
  static constexpr int64_t kBytes = sizeof(Block);

  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t first_column) {
    const RowGroup rows = row_group(args, row);
    Column x[kN];
    __m256 acc[kN];
    for (int c = 0; c < kN; ++c) {
      x[c] = quantized_column(args, first_column + c);
      acc[c] = _mm256_setzero_ps();
    }
    const int64_t n_blocks = args.k / 256;
    for (int64_t b = 0; b < n_blocks; b += kStreamBlocks) {
      const int n = static_cast<int>(n_blocks - b < kStreamBlocks ? n_blocks - b : kStreamBlocks);
      const std::byte* const w = rows.w + b * kBytes;
      const Ahead ahead(rows.w, kRows * args.w_row_bytes, b * kRows * kBytes, n * kRows * kBytes);
      __m256i partial[kStreamBlocks][kN][kRows];
      __m256i partial_min[kStreamBlocks][kN][kRows];
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < n; ++j) {
          ahead.reading((i * n + j) * kBytes, kBytes);
          const Format block = Format::open(reinterpret_cast<const Block*>(w + rows.offset[i] + j * kBytes));
          __m256i sum[kN];
          add_block<kN>(block, x, 256 * (b + j), sum);
#pragma GCC unroll 4
          for (int c = 0; c < kN; ++c) {
            const __m256i sums16 = load_256(x[c].sums16 + 16 * (b + j));
            if constexpr (Format::kOffsetShift >= 0) {
              const __m256i excess = _mm256_madd_epi16(block.scales16, sums16);
              sum[c] = _mm256_sub_epi32(sum[c], _mm256_slli_epi32(excess, Format::kOffsetShift));
            }
            if constexpr (Format::kHasMin) partial_min[j][c][i] = _mm256_madd_epi16(block.mins16, sums16);
            partial[j][c][i] = sum[c];
          }
        }
      }
      for (int j = 0; j < n; ++j) {
        const std::byte* const blocks = w + j * kBytes;
        ahead.finishing(j * kRows * kBytes, kRows * kBytes);
        const __m256 d = Format::d(blocks, rows.offset);
        __m256 dmin = _mm256_setzero_ps();
        if constexpr (Format::kHasMin) dmin = load_halves(blocks + offsetof(Block, dmin), rows.offset);
        for (int c = 0; c < kN; ++c) {
          const __m256 dx = _mm256_set1_ps(x[c].d[b + j]);
          acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_eight(partial[j][c])), _mm256_mul_ps(d, dx), acc[c]);
          if constexpr (Format::kHasMin) {
            const __m256 min = _mm256_cvtepi32_ps(sum_eight(partial_min[j][c]));
            acc[c] = _mm256_fnmadd_ps(min, _mm256_mul_ps(dmin, dx), acc[c]);
          }
        }
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }

 private:
  template <int kN>
  [[gnu::always_inline]] static inline void add_block(const Format& block, const Column* x, int64_t element,
                                                      __m256i* sum) {
#pragma GCC unroll 4
    for (int c = 0; c < kN; ++c) sum[c] = _mm256_setzero_si256();
    add_chunk<0, kN>(block, x, element, sum);
    add_chunk<1, kN>(block, x, element, sum);
    add_chunk<2, kN>(block, x, element, sum);
    add_chunk<3, kN>(block, x, element, sum);
    add_chunk<4, kN>(block, x, element, sum);
    add_chunk<5, kN>(block, x, element, sum);
    add_chunk<6, kN>(block, x, element, sum);
    add_chunk<7, kN>(block, x, element, sum);
  }
};

}  // namespace
}  // namespace expertree::avx2

#endif
