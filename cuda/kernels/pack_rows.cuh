// One lane's part of one group of a row, from the file's layout to packed planes (packed_layout.h). Used by the kernel
// and on the host.
#pragma once

#include <cstdint>

#include "cpp/base/host_device.h"
#include "cuda/kernels/file_blocks.cuh"
#include "cuda/kernels/packed_layout.h"

namespace expertree::cuda {

// Puts kBits bits of a code into a lane's words: element i of word 2 s + h.
template <int kBits>
EXPERTREE_HOST_DEVICE inline void put_code(uint32_t* words, int word, int i, int code) {
  constexpr int kWords = 8 / kBits;  // share one word
  words[word / kWords] |= static_cast<uint32_t>(code) << (8 * i + word % kWords * kBits);
}

template <int kBits>
EXPERTREE_HOST_DEVICE inline void store_words(const uint32_t* words, uint8_t* plane, int64_t lane) {
  uint32_t* out = reinterpret_cast<uint32_t*>(plane) + lane * kBits;
  for (int i = 0; i < kBits; ++i) out[i] = words[i];
}

// row: the file's bytes of the row; planes: of the packed row.
template <DType kType>
EXPERTREE_HOST_DEVICE inline void pack_lane(const uint8_t* row, int64_t k, int64_t group, int c,
                                            uint8_t* const (&planes)[kNumPlanes]) {
  using Block = FileBlock<kType>;
  constexpr int kLow = Block::kLowBits;
  constexpr int kHigh_ = Block::kHighBits;
  uint32_t low[8] = {};
  uint32_t high[8] = {};
  for (int word = 0; word < 8; ++word) {
    for (int i = 0; i < 4; ++i) {
      const int64_t element = group * kGroup + 16 * word + 4 * c + i;
      if (element >= k) continue;
      const int code =
          Block::code(row + element / Block::kElements * Block::kBytes, static_cast<int>(element % Block::kElements));
      put_code<kLow>(low, word, i, code & ((1 << kLow) - 1));
      if constexpr (kHigh_ > 0) put_code<kHigh_>(high, word, i, code >> kLow);
    }
  }
  store_words<kLow>(low, planes[kCodes], group * 4 + c);
  if constexpr (kHigh_ > 0) store_words<kHigh_>(high, planes[kHigh], group * 4 + c);
  // Block c of the group's four, or the one that begins here.
  constexpr int kBlocks = Block::kElements == 32 ? 4 : 1;
  if (c >= kBlocks || (Block::kElements == 256 && group % 2 != 0)) return;
  const int64_t block = group * kGroup / Block::kElements + c;
  const uint8_t* in = row + block * Block::kBytes;
  const bool inside = block * Block::kElements < k;
  for (int i = 0; i < Block::kScales.bytes; ++i) {
    planes[kScales][block * Block::kScales.bytes + i] = in[Block::kScales.offset + i];
  }
  for (int i = 0; i < Block::kD.bytes; ++i) {
    planes[kD][block * Block::kD.bytes + i] = inside ? in[Block::kD.offset + i] : uint8_t{0};
  }
}

// Float formats: the 16-byte piece of virtual lane v.
template <int kElementBytes>
EXPERTREE_HOST_DEVICE inline void pack_piece(const uint8_t* row, int64_t k, int64_t group, int v, uint8_t* codes) {
  constexpr int kElements = 16 / kElementBytes;
  for (int j = 0; j < kElements; ++j) {
    const int64_t element = (group * kElements + j) * 16 + v;
    for (int i = 0; i < kElementBytes; ++i) {
      codes[(group * 16 + v) * 16 + j * kElementBytes + i] =
          element < k ? row[element * kElementBytes + i] : uint8_t{0};
    }
  }
}

}  // namespace expertree::cuda
