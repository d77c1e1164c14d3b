// How the NEON products of the 256-element formats work (canonical.h, C4).
//
// Four rows advance together. A block is walked in eight chunks of 32 elements: a chunk is expanded once to its signed
// integers and multiplied by up to four columns; the sums of a sub-block are multiplied by its integer scale while they
// are still four lanes (|S| of a whole block is below 2^31, so no lane overflows).
#pragma once

#if defined(__aarch64__)

#include "cpp/kernels/neon/chunk.h"
#include "cpp/kernels/neon/vector.h"

namespace expertree::neon {
namespace {

// Integer scales as int32: kCount of 16, one per 16 elements, or of 8, one per 32.
template <int kCount>
struct Scales {
  int32x4_t v[kCount / 4];
};

inline Scales<8> widen(int16x8_t scales) {
  return {{vmovl_s16(vget_low_s16(scales)), vmovl_s16(vget_high_s16(scales))}};
}
inline Scales<16> widen(int16x8_t first, int16x8_t last) {
  const Scales<8> a = widen(first);
  const Scales<8> b = widen(last);
  return {{a.v[0], a.v[1], b.v[0], b.v[1]}};
}
inline Scales<16> widen(int8x16_t scales) {
  return widen(vmovl_s8(vget_low_s8(scales)), vmovl_s8(vget_high_s8(scales)));
}

template <int kWhich, int kCount>
[[gnu::always_inline]] inline int32x4_t scaled(int32x4_t sum, int32x4_t products, const Scales<kCount>& scales) {
  return vmlaq_laneq_s32(sum, products, scales.v[kWhich / 4], kWhich % 4);
}

// The sum of the products by chunk kChunk, each sub-block times its scale.
template <int kChunk>
[[gnu::always_inline]] inline int32x4_t add_products(int32x4_t sum, Chunk w, const int8_t* q, const Scales<8>& scales) {
  const int32x4_t low = dot_16(vdupq_n_s32(0), w.low, load_signed(q));
  return scaled<kChunk>(sum, dot_16(low, w.high, load_signed(q + 16)), scales);
}
template <int kChunk>
[[gnu::always_inline]] inline int32x4_t add_products(int32x4_t sum, Chunk w, const int8_t* q,
                                                     const Scales<16>& scales) {
  sum = scaled<2 * kChunk>(sum, dot_16(vdupq_n_s32(0), w.low, load_signed(q)), scales);
  return scaled<2 * kChunk + 1>(sum, dot_16(vdupq_n_s32(0), w.high, load_signed(q + 16)), scales);
}

// Adds chunk kChunk of one block for every column, element being the block's first: four int32 partial sums each.
template <int kChunk, int kN, typename Format>
[[gnu::always_inline]] inline void add_chunk(const Format& block, const Column* x, int64_t element, int32x4_t* sum) {
  const Chunk w = block.template chunk<kChunk>();
#pragma GCC unroll 4
  for (int c = 0; c < kN; ++c) sum[c] = add_products<kChunk>(sum[c], w, x[c].q + element + 32 * kChunk, block.scales);
}

// Sixteen minimums times the sums of 16 activations that they meet, in four lanes.
struct Mins {
  int16x8_t first;
  int16x8_t last;
};
inline int32x4_t dot_mins(const Mins& mins, const int16_t* sums16) {
  const int16x8_t first = vld1q_s16(sums16);
  const int16x8_t last = vld1q_s16(sums16 + 8);
  int32x4_t sum = vmull_s16(vget_low_s16(mins.first), vget_low_s16(first));
  sum = vmlal_s16(sum, vget_high_s16(mins.first), vget_high_s16(first));
  sum = vmlal_s16(sum, vget_low_s16(mins.last), vget_low_s16(last));
  return vmlal_s16(sum, vget_high_s16(mins.last), vget_high_s16(last));
}

// The stored scale d of four rows.
template <typename Block_>
struct HalfD {
  using Block = Block_;
  static constexpr bool kHasMin = false;
  static float32x4_t d(const std::byte* w, const int64_t* offset) {
    return load_halves(w + offsetof(Block, d), offset);
  }
};

template <typename Format>
struct Kernel256 {
  using Block = typename Format::Block;

  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t first_column) {
    const RowGroup rows = row_group(args, row);
    Column x[kN];
    float32x4_t acc[kN];
    for (int c = 0; c < kN; ++c) {
      x[c] = quantized_column(args, first_column + c);
      acc[c] = vdupq_n_f32(0.0f);
    }
    const std::byte* w = rows.w;
    for (int64_t b = 0; b < args.k / 256; ++b, w += sizeof(Block)) {
      int32x4_t partial[kN][kRows];
      int32x4_t partial_min[kN][kRows];
      for (int i = 0; i < kRows; ++i) {
        const Format block = Format::open(reinterpret_cast<const Block*>(w + rows.offset[i]));
        int32x4_t sum[kN];
#pragma GCC unroll 4
        for (int c = 0; c < kN; ++c) sum[c] = vdupq_n_s32(0);
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
          partial[c][i] = sum[c];
          if constexpr (Format::kHasMin) partial_min[c][i] = dot_mins(block.mins, x[c].sums16 + 16 * b);
        }
      }
      const float32x4_t d = Format::d(w, rows.offset);
      float32x4_t dmin = vdupq_n_f32(0.0f);
      if constexpr (Format::kHasMin) dmin = load_halves(w + offsetof(Block, dmin), rows.offset);
      for (int c = 0; c < kN; ++c) {
        const float32x4_t dx = vdupq_n_f32(x[c].d[b]);
        acc[c] = vfmaq_f32(acc[c], vcvtq_f32_s32(sum_four(partial[c])), vmulq_f32(d, dx));
        if constexpr (Format::kHasMin) {
          const float32x4_t min = vcvtq_f32_s32(sum_four(partial_min[c]));
          acc[c] = vfmsq_f32(acc[c], min, vmulq_f32(dmin, dx));
        }
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }
};

}  // namespace
}  // namespace expertree::neon

#endif
