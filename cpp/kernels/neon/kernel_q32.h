// How the NEON products of the 32-element formats and of NVFP4 work (canonical.h, C4).
//
// Four rows advance together, one block each per step; their four sums make one register, and each row is a lane of the
// float accumulator. Weights are expanded to their signed integers, so that no sum has to be corrected afterwards.
#pragma once

#if defined(__aarch64__)

#include "cpp/kernels/neon/chunk.h"
#include "cpp/kernels/neon/vector.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

namespace expertree::neon {
namespace {

// 16 in byte i where bit i of two bytes is set.
inline int8x16_t fifth_bits(const uint8_t* qh) {
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
  const uint8x16_t spread = vcombine_u8(vdup_n_u8(qh[0]), vdup_n_u8(qh[1]));
  return vreinterpretq_s8_u8(vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(16)));
}

template <typename Block>
inline Chunk five_bits(const Block* block) {
  const Chunk low = nibbles(block->qs);
  return {vorrq_s8(low.low, fifth_bits(block->qh)), vorrq_s8(low.high, fifth_bits(block->qh + 2))};
}

// Per format: the integers of a block and the scales of four blocks.
template <typename Block_>
struct HalfScale {
  using Block = Block_;
  static constexpr bool kHasMin = false;
  static float32x4_t scales(const std::byte* w, const int64_t* offset) {
    return load_halves(w + offsetof(Block, d), offset);
  }
};
template <typename Block>
struct HalfScaleAndMin : HalfScale<Block> {
  static constexpr bool kHasMin = true;
  static float32x4_t mins(const std::byte* w, const int64_t* offset) {
    return load_halves(w + offsetof(Block, m), offset);
  }
};

struct FormatQ4_0 : HalfScale<BlockQ4_0> {
  static Chunk expand(const Block* block) { return subtract(nibbles(block->qs), 8); }
};
struct FormatQ4_1 : HalfScaleAndMin<BlockQ4_1> {
  static Chunk expand(const BlockQ4_1* block) { return nibbles(block->qs); }
};
struct FormatQ5_0 : HalfScale<BlockQ5_0> {
  static Chunk expand(const Block* block) { return subtract(five_bits(block), 16); }
};
struct FormatQ5_1 : HalfScaleAndMin<BlockQ5_1> {
  static Chunk expand(const BlockQ5_1* block) { return five_bits(block); }
};
struct FormatQ8_0 : HalfScale<BlockQ8_0> {
  static Chunk expand(const Block* block) { return {load_signed(block->qs), load_signed(block->qs + 16)}; }
};
struct FormatIQ4_NL : HalfScale<BlockIQ4_NL> {
  static Chunk expand(const Block* block) { return look_up(kIQ4Values, nibbles(block->qs)); }
};
struct FormatMXFP4 {
  using Block = BlockMXFP4;
  static constexpr bool kHasMin = false;
  static Chunk expand(const Block* block) { return look_up(kMXFP4Values, nibbles(block->qs)); }
  static float32x4_t scales(const std::byte* w, const int64_t* offset) {
    float d[kRows];
    for (int i = 0; i < kRows; ++i) d[i] = e8m0_to_float_half(static_cast<uint8_t>(w[offset[i]]));
    return vld1q_f32(d);
  }
};

template <typename Format>
struct Kernel32 {
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
    for (int64_t b = 0; b < args.k / 32; ++b, w += sizeof(Block)) {
      int32x4_t partial[kN][kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const Chunk integers = Format::expand(reinterpret_cast<const Block*>(w + rows.offset[i]));
#pragma GCC unroll 4
        for (int c = 0; c < kN; ++c) {
          const int8_t* q = x[c].q + 32 * b;
          const int32x4_t first = dot_16(vdupq_n_s32(0), integers.low, load_signed(q));
          partial[c][i] = dot_16(first, integers.high, load_signed(q + 16));
        }
      }
      const float32x4_t d = Format::scales(w, rows.offset);
      float32x4_t m = vdupq_n_f32(0.0f);
      if constexpr (Format::kHasMin) m = Format::mins(w, rows.offset);
#pragma GCC unroll 4
      for (int c = 0; c < kN; ++c) {
        const float32x4_t dx = vdupq_n_f32(x[c].d[b]);
        acc[c] = vfmaq_f32(acc[c], vcvtq_f32_s32(sum_four(partial[c])), vmulq_f32(d, dx));
        if constexpr (Format::kHasMin) {
          const int32_t sum = x[c].sums16[2 * b] + x[c].sums16[2 * b + 1];
          acc[c] = vfmaq_f32(acc[c], vdupq_n_f32(static_cast<float>(sum)), vmulq_f32(m, dx));
        }
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }
};

// A step of the chain for each group of 16 elements.
struct KernelNVFP4 {
  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t first_column) {
    const RowGroup rows = row_group(args, row);
    Column x[kN];
    float32x4_t acc[kN];
    for (int c = 0; c < kN; ++c) {
      x[c] = quantized_column(args, first_column + c);
      acc[c] = vdupq_n_f32(0.0f);
    }
    const int8x16_t values = load_signed(kMXFP4Values);
    for (int64_t g = 0; g < args.k / 16; ++g) {
      const std::byte* w = rows.w + g / 4 * static_cast<int64_t>(sizeof(BlockNVFP4));
      int32x4_t partial[kN][kRows];
      float d[kRows];
      for (int i = 0; i < kRows; ++i) {
        const auto* block = reinterpret_cast<const BlockNVFP4*>(w + rows.offset[i]);
        const uint8x8_t bytes = vld1_u8(block->qs + g % 4 * 8);
        const uint8x16_t codes = vcombine_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
        const int8x16_t integers = vqtbl1q_s8(values, codes);
        d[i] = ue4m3_to_float_half(block->d[g % 4]);
        for (int c = 0; c < kN; ++c) partial[c][i] = dot_16(vdupq_n_s32(0), integers, load_signed(x[c].q + 16 * g));
      }
      for (int c = 0; c < kN; ++c) {
        const float32x4_t scale = vmulq_n_f32(vld1q_f32(d), x[c].d[g / 2]);
        acc[c] = vfmaq_f32(acc[c], vcvtq_f32_s32(sum_four(partial[c])), scale);
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }
};

}  // namespace
}  // namespace expertree::neon

#endif
