// Formats of 32 elements, each block with its float scale.
//   Raw, load(row, group, c)       what a lane loads of a group
//   words(raw, w)                  its eight words
//   d(row, block), m(row, block)   scale and, with kHasMin, minimum of a block
//   scales(row, group)             those of the group's four blocks
#pragma once

#include "cpp/tensor/dtype.h"
#include "cpp/tensor/half.h"
#include "cuda/kernels/weight_words.cuh"

namespace expertree::cuda {

template <DType>
struct Weights;

template <int kCodeBits>
struct Raw32 {
  Words<4 * kCodeBits> low;
  Words<4> high;
};

struct Scales4 {
  float d[4];
  float m[4];
};

struct HalfScale {
  static constexpr int kBlock = 32;
  static constexpr bool kHasMin = false;
  __device__ static float d(const PackedRow& row, int block) { return load_half(row.plane[kD], block); }
  __device__ static Scales4 scales(const PackedRow& row, int group) {
    const Words<8> four = load_words<8>(row.plane[kD] + group * 8);
    Scales4 out{};
#pragma unroll
    for (int s = 0; s < 4; ++s) out.d[s] = half_at(four.w[s / 2], s % 2);
    return out;
  }
};

struct HalfScaleAndMin {
  static constexpr int kBlock = 32;
  static constexpr bool kHasMin = true;
  __device__ static float d(const PackedRow& row, int block) { return load_half(row.plane[kD], 2 * block); }
  __device__ static float m(const PackedRow& row, int block) { return load_half(row.plane[kD], 2 * block + 1); }
  __device__ static Scales4 scales(const PackedRow& row, int group) {
    const Words<16> four = load_words<16>(row.plane[kD] + group * 16);
    Scales4 out{};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      out.d[s] = half_at(four.w[s], 0);
      out.m[s] = half_at(four.w[s], 1);
    }
    return out;
  }
};

struct E8M0Scale {
  static constexpr int kBlock = 32;
  static constexpr bool kHasMin = false;
  __device__ static float d(const PackedRow& row, int block) {
    return e8m0_to_float_half(__ldg(row.plane[kD] + block));
  }
  __device__ static Scales4 scales(const PackedRow& row, int group) {
    const uint32_t four = load_words<4>(row.plane[kD] + group * 4).w[0];
    Scales4 out{};
#pragma unroll
    for (int s = 0; s < 4; ++s) out.d[s] = e8m0_to_float_half(static_cast<uint8_t>(four >> (8 * s)));
    return out;
  }
};

// Four bits and perhaps a fifth, less an offset.
template <class Scale, bool kFifthBit, int kOffset>
struct NibbleWeights : Scale {
  using Raw = Raw32<4>;
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    Raw raw{load_codes<4>(row.plane[kCodes], group, c), {}};
    if constexpr (kFifthBit) raw.high = load_codes<1>(row.plane[kHigh], group, c);
    return raw;
  }
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t codes = codes_of<4>(raw.low, i);
      if constexpr (kFifthBit) codes |= codes_of<1>(raw.high, i) << 4;
      w[i] = static_cast<int>(minus<kOffset>(codes));
    }
  }
};
template <>
struct Weights<DType::kQ4_0> : NibbleWeights<HalfScale, false, 8> {};
template <>
struct Weights<DType::kQ4_1> : NibbleWeights<HalfScaleAndMin, false, 0> {};
template <>
struct Weights<DType::kQ5_0> : NibbleWeights<HalfScale, true, 16> {};
template <>
struct Weights<DType::kQ5_1> : NibbleWeights<HalfScaleAndMin, true, 0> {};

template <class Scale>
struct TableWeights : Scale {
  using Raw = Words<16>;
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    return load_codes<4>(row.plane[kCodes], group, c);
  }
  __device__ __forceinline__ static void words(const Raw& raw, const Table16& table, int (&w)[8]) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t low;
      uint32_t high;
      look_up(table, raw.w[s], &low, &high);
      w[2 * s] = static_cast<int>(low);
      w[2 * s + 1] = static_cast<int>(high);
    }
  }
};
// kIQ4Values and kMXFP4Values of cpp/tensor/blocks.h.
__device__ inline Table16 iq4_table() { return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}}; }
__device__ inline Table16 mxfp4_table() { return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}}; }

template <>
struct Weights<DType::kIQ4_NL> : TableWeights<HalfScale> {
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
    TableWeights<HalfScale>::words(raw, iq4_table(), w);
  }
};
template <>
struct Weights<DType::kMXFP4> : TableWeights<E8M0Scale> {
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
    TableWeights<E8M0Scale>::words(raw, mxfp4_table(), w);
  }
};

template <>
struct Weights<DType::kQ8_0> : HalfScale {
  using Raw = Words<32>;
  __device__ __forceinline__ static Raw load(const PackedRow& row, int group, int c) {
    return load_codes<8>(row.plane[kCodes], group, c);
  }
  __device__ __forceinline__ static void words(const Raw& raw, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = static_cast<int>(raw.w[i]);
  }
};

}  // namespace expertree::cuda
