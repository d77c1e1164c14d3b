// A lane's weights of one group as int8 words in registers (packed_layout.h): word 2 s + h holds the elements
// 32 s + 16 h + 4 c + i, i = 0 .. 3.
#pragma once

#include <cstdint>

#include "cuda/gpu/gpu.h"
#include "cuda/kernels/packed_layout.h"

namespace expertree::cuda {

// A row of each plane.
struct PackedRow {
  const uint8_t* plane[kNumPlanes];
};

// kBytes (4, 8 or 16) as words.
template <int kBytes>
struct Words {
  uint32_t w[kBytes / 4];
};

template <int kBytes>
__device__ __forceinline__ Words<kBytes> load_words(const uint8_t* p) {
  Words<kBytes> out;
  if constexpr (kBytes == 4) {
    out.w[0] = __ldg(reinterpret_cast<const unsigned*>(p));
  } else if constexpr (kBytes == 8) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(p));
    out.w[0] = v.x, out.w[1] = v.y;
  } else {
    static_assert(kBytes % 16 == 0);
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i);
      out.w[4 * i] = v.x, out.w[4 * i + 1] = v.y, out.w[4 * i + 2] = v.z, out.w[4 * i + 3] = v.w;
    }
  }
  return out;
}

// kBits bits of each of a lane's 32 elements.
template <int kBits>
__device__ __forceinline__ Words<4 * kBits> load_codes(const uint8_t* plane, int group, int c) {
  return load_words<4 * kBits>(plane + (static_cast<int64_t>(group) * 4 + c) * (4 * kBits));
}

template <int kBits>
__device__ __forceinline__ uint32_t codes_of(const Words<4 * kBits>& raw, int word) {
  if constexpr (kBits == 8) {
    return raw.w[word];
  } else {
    constexpr int kWords = 8 / kBits;
    constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
    return raw.w[word / kWords] >> (word % kWords * kBits) & kMask;
  }
}

// Each byte, below 128, less `offset`.
template <int kOffset>
__device__ __forceinline__ uint32_t minus(uint32_t bytes) {
  if constexpr (kOffset == 0) return bytes;
  return ((bytes | 0x80808080u) - 0x01010101u * kOffset) ^ 0x80808080u;
}

// Entries of a table of 16 bytes: for the nibbles of `codes`, those of low nibbles and those of high ones.
struct Table16 {
  uint32_t w[4];
};
__device__ __forceinline__ void look_up(const Table16& table, uint32_t codes, uint32_t* low, uint32_t* high) {
  uint32_t pairs[2];  // bytes 2 i and 2 i + 1: low and high nibble of byte i
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = codes >> (16 * half);
    const uint32_t places = four & 0x7777u;
    const uint32_t lower = __byte_perm(table.w[0], table.w[1], places);
    const uint32_t upper = __byte_perm(table.w[2], table.w[3], places);
    pairs[half] = __byte_perm(lower, upper, 0x3210u | (four & 0x8888u) >> 1);
  }
  *low = __byte_perm(pairs[0], pairs[1], 0x6420u);
  *high = __byte_perm(pairs[0], pairs[1], 0x7531u);
}

// Signed byte i of a word.
__device__ __forceinline__ int byte_of(uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i)); }

__device__ __forceinline__ float half_at(uint32_t word, int i) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> (16 * i))));
}
__device__ __forceinline__ float load_half(const uint8_t* plane, int i) {
  return __half2float(__ushort_as_half(__ldg(reinterpret_cast<const unsigned short*>(plane) + i)));
}

}  // namespace expertree::cuda
