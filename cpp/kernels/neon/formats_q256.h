// The K-quants and IQ4_XS for kernel_q256.h. A reader is made per block; chunk<i>() gives elements 32i .. 32i + 31.
#pragma once

#if defined(__aarch64__)

#include "cpp/kernels/neon/kernel_q256.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/integer_blocks.h"

namespace expertree::neon {
namespace {

inline uint32x4_t set_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t lanes[4] = {a, b, c, d};
  return vld1q_u32(lanes);
}

// Bits kFrom .. of every byte moved down, those of kMask kept.
template <int kFrom, int kMask>
inline uint8x16_t bits_from(uint8x16_t bytes) {
  if constexpr (kFrom == 0) {
    return vandq_u8(bytes, vdupq_n_u8(kMask));
  } else if constexpr (0xff >> kFrom == kMask) {
    return vshrq_n_u8(bytes, kFrom);
  } else {
    return vandq_u8(vshrq_n_u8(bytes, kFrom), vdupq_n_u8(kMask));
  }
}

// low | high << kShift
template <int kShift>
inline int8x16_t join(uint8x16_t low, uint8x16_t high) {
  return vreinterpretq_s8_u8(vorrq_u8(low, vshlq_n_u8(high, kShift)));
}

// 128 elements share 32 bytes: each quarter of 32 takes the next two bits.
template <int kChunk>
inline uint8x16_t pairs(const uint8_t* qs, int half) {
  return bits_from<kChunk % 4 * 2, 3>(load_bytes(qs + kChunk / 4 * 32 + 16 * half));
}
// 64 elements share 32 bytes: low nibbles first.
template <int kChunk>
inline uint8x16_t nibbles_of(const uint8_t* qs, int half) {
  return bits_from<kChunk % 2 * 4, 15>(load_bytes(qs + kChunk / 2 * 32 + 16 * half));
}

struct FormatQ2_K : HalfD<BlockQ2_K> {
  static constexpr bool kHasMin = true;
  const Block* block;
  Scales<16> scales;
  Mins mins;

  static FormatQ2_K open(const Block* block) {
    const uint8x16_t packed = load_bytes(block->scales);
    const int8x16_t mn = high_nibbles(packed);
    return {{}, block, widen(low_nibbles(packed)), {vmovl_s8(vget_low_s8(mn)), vmovl_s8(vget_high_s8(mn))}};
  }
  template <int kChunk>
  Chunk chunk() const {
    return {vreinterpretq_s8_u8(pairs<kChunk>(block->qs, 0)), vreinterpretq_s8_u8(pairs<kChunk>(block->qs, 1))};
  }
};

struct FormatQ3_K : HalfD<BlockQ3_K> {
  const Block* block;
  Scales<16> scales;

  static FormatQ3_K open(const Block* block) {
    const uint32_t s0 = read_u32(block->scales);
    const uint32_t s1 = read_u32(block->scales + 4);
    const uint32_t high = read_u32(block->scales + 8);
    constexpr uint32_t kNibbles = 0x0f0f0f0fu;
    constexpr uint32_t kPairs = 0x03030303u;
    const uint32x4_t stored =
        set_u32((s0 & kNibbles) | (high & kPairs) << 4, (s1 & kNibbles) | (high >> 2 & kPairs) << 4,
                (s0 >> 4 & kNibbles) | (high >> 4 & kPairs) << 4, (s1 >> 4 & kNibbles) | (high >> 6 & kPairs) << 4);
    return {{}, block, widen(vsubq_s8(vreinterpretq_s8_u32(stored), vdupq_n_s8(32)))};
  }
  template <int kChunk>
  Chunk chunk() const {
    const uint8x16_t high0 = bits_from<kChunk, 1>(load_bytes(block->hmask));
    const uint8x16_t high1 = bits_from<kChunk, 1>(load_bytes(block->hmask + 16));
    return subtract({join<2>(pairs<kChunk>(block->qs, 0), high0), join<2>(pairs<kChunk>(block->qs, 1), high1)}, 4);
  }
};

// Six-bit scales and minimums of Q4_K and Q5_K.
template <typename Block_>
struct SixBitScales : HalfD<Block_> {
  static constexpr bool kHasMin = true;
  const Block_* block;
  Scales<8> scales;
  Mins mins;  // each twice, to meet sums16

  static SixBitScales open(const Block_* block) {
    const uint32_t s0 = read_u32(block->scales);
    const uint32_t s1 = read_u32(block->scales + 4);
    const uint32_t s2 = read_u32(block->scales + 8);
    constexpr uint32_t kNibbles = 0x0f0f0f0fu;
    constexpr uint32_t kPairs = 0x03030303u;
    constexpr uint32_t kSix = 0x3f3f3f3fu;
    const int8x16_t both = vreinterpretq_s8_u32(set_u32(s0 & kSix, (s2 & kNibbles) | (s0 >> 6 & kPairs) << 4, s1 & kSix,
                                                        (s2 >> 4 & kNibbles) | (s1 >> 6 & kPairs) << 4));
    const int16x8_t mn = vmovl_s8(vget_high_s8(both));
    return {{}, block, widen(vmovl_s8(vget_low_s8(both))), {vzip1q_s16(mn, mn), vzip2q_s16(mn, mn)}};
  }
};

struct FormatQ4_K : SixBitScales<BlockQ4_K> {
  static FormatQ4_K open(const Block* block) { return {SixBitScales::open(block)}; }
  template <int kChunk>
  Chunk chunk() const {
    return {vreinterpretq_s8_u8(nibbles_of<kChunk>(block->qs, 0)),
            vreinterpretq_s8_u8(nibbles_of<kChunk>(block->qs, 1))};
  }
};

struct FormatQ5_K : SixBitScales<BlockQ5_K> {
  static FormatQ5_K open(const Block* block) { return {SixBitScales::open(block)}; }
  template <int kChunk>
  Chunk chunk() const {
    const uint8x16_t high0 = bits_from<kChunk, 1>(load_bytes(block->qh));
    const uint8x16_t high1 = bits_from<kChunk, 1>(load_bytes(block->qh + 16));
    return {join<4>(nibbles_of<kChunk>(block->qs, 0), high0), join<4>(nibbles_of<kChunk>(block->qs, 1), high1)};
  }
};

struct FormatQ6_K : HalfD<BlockQ6_K> {
  const Block* block;
  Scales<16> scales;

  static FormatQ6_K open(const Block* block) { return {{}, block, widen(load_signed(block->scales))}; }
  // 128 elements share 64 bytes of ql and 32 of qh.
  template <int kChunk>
  int8x16_t stored(int half) const {
    constexpr int kQuarter = kChunk % 4;
    const uint8x16_t low = load_bytes(block->ql + kChunk / 4 * 64 + kQuarter % 2 * 32 + 16 * half);
    const uint8x16_t high = load_bytes(block->qh + kChunk / 4 * 32 + 16 * half);
    return join<4>(bits_from<kQuarter / 2 * 4, 15>(low), bits_from<kQuarter * 2, 3>(high));
  }
  template <int kChunk>
  Chunk chunk() const {
    return subtract({stored<kChunk>(0), stored<kChunk>(1)}, 32);
  }
};

struct FormatIQ4_XS : HalfD<BlockIQ4_XS> {
  const Block* block;
  Scales<8> scales;

  static FormatIQ4_XS open(const Block* block) {
    int16_t sc[8];
    for (int j = 0; j < 8; ++j) {
      const int high = block->scales_h >> (2 * j) & 3;
      sc[j] = static_cast<int16_t>((nibble_of(block->scales_l, j) | high << 4) - 32);
    }
    return {{}, block, widen(vld1q_s16(sc))};
  }
  template <int kChunk>
  Chunk chunk() const {
    return look_up(kIQ4Values, nibbles(block->qs + 16 * kChunk));
  }
};

}  // namespace
}  // namespace expertree::neon

#endif
