// Formats of 256 elements: integer scales of sub-blocks of kSub = 32 or 16 elements inside a block with a float scale.
//   Raw, load(row, group, c), words(raw, w)   as in weights32.cuh
//   scales(raw, group)                 of the group: byte s of w[0], or byte 2 s + h of w[0 .. 1]
//   mins(raw, group)                   the same, with kHasMin
//   d(row, raw, block), dmin(..)       float scales
// With kFoldsScale the product of a word and its scale is a word of int8: words() has the scales in.
#pragma once

#include "cuda/kernels/weights32.cuh"

namespace expertree::cuda {

struct RawK {
  Words<16> low;
  Words<4> high;
  Words<16> head;  // d, dmin, twelve bytes with scales and minimums of six bits
};

// Q4_K and, with a fifth bit, Q5_K.
template <bool kFifthBit>
struct SixBitWeights {
  static constexpr int kBlock = 256;
  static constexpr int kSub = 32;
  static constexpr bool kHasMin = true;
  static constexpr bool kFoldsScale = false;
  using Raw = RawK;
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    Raw raw{load_codes<4>(row.plane[kCodes], group, c), {}, load_words<16>(row.plane[kScales] + group / 2 * 16)};
    if constexpr (kFifthBit) raw.high = load_codes<1>(row.plane[kHigh], group, c);
    return raw;
  }
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t codes = codes_of<4>(raw.low, i);
      if constexpr (kFifthBit) codes |= codes_of<1>(raw.high, i) << 4;
      w[i] = static_cast<int>(codes);
    }
  }
  // Sub-blocks 0-3 have six bits each in words 1 and 2; of 4-7 the low four are in word 3, the high two above those.
  __device__ __forceinline__ static Words<4> scales(const Raw& raw, int group) {
    const uint32_t* head = raw.head.w;
    return {{group % 2 == 0 ? head[1] & 0x3f3f3f3fu : (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u)}};
  }
  __device__ __forceinline__ static Words<4> mins(const Raw& raw, int group) {
    const uint32_t* head = raw.head.w;
    return {{group % 2 == 0 ? head[2] & 0x3f3f3f3fu : (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u)}};
  }
  __device__ __forceinline__ static float d(const PackedRow&, const Raw& raw, int) { return half_at(raw.head.w[0], 0); }
  __device__ __forceinline__ static float dmin(const PackedRow&, const Raw& raw, int) {
    return half_at(raw.head.w[0], 1);
  }
};
template <>
struct Weights<DType::kQ4_K> : SixBitWeights<false> {};
template <>
struct Weights<DType::kQ5_K> : SixBitWeights<true> {};

template <>
struct Weights<DType::kQ6_K> {
  static constexpr int kBlock = 256;
  static constexpr int kSub = 16;
  static constexpr bool kHasMin = false;
  static constexpr bool kFoldsScale = false;
  struct Raw {
    Words<16> low;
    Words<8> high;
    Words<8> scales;
  };
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    return {load_codes<4>(row.plane[kCodes], group, c), load_codes<2>(row.plane[kHigh], group, c),
            load_words<8>(row.plane[kScales] + group * 8)};
  }
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w[i] = static_cast<int>(minus<32>(codes_of<4>(raw.low, i) | codes_of<2>(raw.high, i) << 4));
    }
  }
  __device__ __forceinline__ static Words<8> scales(const Raw& raw, int) { return raw.scales; }
  __device__ __forceinline__ static float d(const PackedRow& row, const Raw&, int block) {
    return load_half(row.plane[kD], block);
  }
};

template <>
struct Weights<DType::kQ3_K> {
  static constexpr int kBlock = 256;
  static constexpr int kSub = 16;
  static constexpr bool kHasMin = false;
  static constexpr bool kFoldsScale = false;
  struct Raw {
    Words<8> low;
    Words<4> high;
    uint32_t scales[3];
  };
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    const uint8_t* scales = row.plane[kScales] + group / 2 * 12;
    return {load_codes<2>(row.plane[kCodes], group, c),
            load_codes<1>(row.plane[kHigh], group, c),
            {load_words<4>(scales).w[0], load_words<4>(scales + 4).w[0], load_words<4>(scales + 8).w[0]}};
  }
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w[i] = static_cast<int>(minus<4>(codes_of<2>(raw.low, i) | codes_of<1>(raw.high, i) << 2));
    }
  }
  // Of the 16 scales the low four bits are in nibbles of words 0 and 1, the high two in word 2.
  __device__ __forceinline__ static Words<8> scales(const Raw& raw, int group) {
    const int shift = group % 2 * 4;
    const uint32_t high = raw.scales[2] >> shift;
    return {{minus<32>((raw.scales[0] >> shift & 0x0f0f0f0fu) | (high << 4 & 0x30303030u)),
             minus<32>((raw.scales[1] >> shift & 0x0f0f0f0fu) | (high << 2 & 0x30303030u))}};
  }
  __device__ __forceinline__ static float d(const PackedRow& row, const Raw&, int block) {
    return load_half(row.plane[kD], block);
  }
};

template <>
struct Weights<DType::kQ2_K> {
  static constexpr int kBlock = 256;
  static constexpr int kSub = 16;
  static constexpr bool kHasMin = true;
  static constexpr bool kFoldsScale = true;  // 3 * 15
  struct Raw {
    Words<8> low;
    Words<8> scales;
  };
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    return {load_codes<2>(row.plane[kCodes], group, c), load_words<8>(row.plane[kScales] + group * 8)};
  }
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w[i] = static_cast<int>(codes_of<2>(raw.low, i) * (raw.scales.w[i / 4] >> (i % 4 * 8) & 15u));
    }
  }
  __device__ __forceinline__ static Words<8> mins(const Raw& raw, int) {
    return {{raw.scales.w[0] >> 4 & 0x0f0f0f0fu, raw.scales.w[1] >> 4 & 0x0f0f0f0fu}};
  }
  __device__ __forceinline__ static float d(const PackedRow& row, const Raw&, int block) {
    return load_half(row.plane[kD], 2 * block);
  }
  __device__ __forceinline__ static float dmin(const PackedRow& row, const Raw&, int block) {
    return load_half(row.plane[kD], 2 * block + 1);
  }
};

template <>
struct Weights<DType::kIQ4_XS> {
  static constexpr int kBlock = 256;
  static constexpr int kSub = 32;
  static constexpr bool kHasMin = false;
  static constexpr bool kFoldsScale = false;
  struct Raw {
    Words<16> low;
    Words<8> head;  // d, two bits of each scale, then four bits of each
  };
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    return {load_codes<4>(row.plane[kCodes], group, c), load_words<8>(row.plane[kScales] + group / 2 * 8)};
  }
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
    TableWeights<HalfScale>::words(raw.low, iq4_table(), w);
  }
  __device__ __forceinline__ static Words<4> scales(const Raw& raw, int group) {
    const uint32_t low = raw.head.w[1] >> (group % 2 * 16);
    const uint32_t high = raw.head.w[0] >> (16 + group % 2 * 8);
    uint32_t scales = 0;
#pragma unroll
    for (int s = 0; s < 4; ++s) scales |= ((low >> (4 * s) & 15u) | (high >> (2 * s) & 3u) << 4) << (8 * s);
    return {{minus<32>(scales)}};
  }
  __device__ __forceinline__ static float d(const PackedRow&, const Raw& raw, int) { return half_at(raw.head.w[0], 0); }
};

}  // namespace expertree::cuda
