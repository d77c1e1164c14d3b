// The code books and the ternary formats for kernel_q256.h.
#pragma once

#if defined(__aarch64__)

#include "cpp/kernels/neon/kernel_q256.h"
#include "cpp/tensor/integer_blocks.h"

namespace expertree::neon {
namespace {

// Formats that fewer files use: decoded as plain code does it, once for all columns. One copy of that is enough.
template <typename Block_>
struct Decoded {
  using Block = Block_;
  static constexpr bool kHasMin = false;
  IntegerBlock integers;
  Scales<16> scales;

  static float32x4_t d(const std::byte* w, const int64_t* offset) {
    float d[kRows];
    for (int i = 0; i < kRows; ++i) {
      Block block;
      std::memcpy(&block, w + offset[i], sizeof(block));
      d[i] = stored_d(block);
    }
    return vld1q_f32(d);
  }
  [[gnu::noinline]] static void decode(const Block* at, IntegerBlock* out) {
    Block block;
    std::memcpy(&block, at, sizeof(block));
    decode_integers(block, out);
  }
  static Decoded open(const Block* at) {
    Decoded out;
    decode(at, &out.integers);
    out.scales = widen(vld1q_s16(out.integers.scale), vld1q_s16(out.integers.scale + 8));
    return out;
  }
  template <int kChunk>
  Chunk chunk() const {
    return {load_signed(integers.q + 32 * kChunk), load_signed(integers.q + 32 * kChunk + 16)};
  }
};

}  // namespace
}  // namespace expertree::neon

#endif
