// 32 weights as signed bytes, from nibbles and tables.
#pragma once

#if defined(__aarch64__)

#include "cpp/kernels/neon/vector.h"

namespace expertree::neon {
namespace {

struct Chunk {  // 32 elements
  int8x16_t low;
  int8x16_t high;
};

inline int8x16_t low_nibbles(uint8x16_t bytes) { return vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))); }
inline int8x16_t high_nibbles(uint8x16_t bytes) { return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)); }

// Elements 0-15 from the low nibbles, 16-31 from the high ones.
inline Chunk nibbles(const uint8_t* qs) {
  const uint8x16_t bytes = load_bytes(qs);
  return {low_nibbles(bytes), high_nibbles(bytes)};
}

inline Chunk subtract(Chunk chunk, int8_t offset) {
  return {vsubq_s8(chunk.low, vdupq_n_s8(offset)), vsubq_s8(chunk.high, vdupq_n_s8(offset))};
}

inline Chunk look_up(const int8_t* table, Chunk index) {
  const int8x16_t values = load_signed(table);
  return {vqtbl1q_s8(values, vreinterpretq_u8_s8(index.low)), vqtbl1q_s8(values, vreinterpretq_u8_s8(index.high))};
}

}  // namespace
}  // namespace expertree::neon

#endif
