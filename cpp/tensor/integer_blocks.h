// Blocks of the code-book and ternary formats as integers and scales: w = d * scale[j] * q, j = sub-block of 16.
// `static inline`: every instruction set has its own copy.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"
#include "cpp/tensor/iq_grids.h"

namespace expertree {

struct IntegerBlock {
  int8_t q[256];
  int16_t scale[16];
  float d;
};

// What the stored scale is divided by, exactly: it makes grid values and scales integers.
constexpr float kIQ1Scale = 0x1p-3f;
constexpr float kIQ2Scale = 0x1p-3f;
constexpr float kIQ3_XXSScale = 0x1p-2f;

static inline uint32_t read_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

// Elements of entry `index`, each of kBits, as values with signs (bit e set: minus).
template <int kBits, int kGroup, int kEntries, int kValues>
static inline void put_group(const uint8_t (&grid)[2][kEntries], const int8_t (&values)[kValues], int index, int signs,
                             int8_t* q) {
  const int code = grid[0][index] | grid[1][index] << 8;
  for (int e = 0; e < kGroup; ++e) {
    const int8_t value = values[code >> (kBits * e) & (kValues - 1)];
    q[e] = static_cast<int8_t>((signs >> e & 1) != 0 ? -value : value);
  }
}

static inline int16_t odd_scale(int sc) { return static_cast<int16_t>(2 * sc + 1); }
static inline int nibble_of(const uint8_t* bytes, int j) { return bytes[j / 2] >> (j % 2 * 4) & 15; }

static inline float stored_d(const BlockIQ1_S& b) { return half_to_float(b.d) * kIQ1Scale; }
static inline float stored_d(const BlockIQ1_M& b) {
  int d = 0;
  for (int i = 0; i < 4; ++i) d |= b.scales[i] >> 12 << (4 * i);
  return half_to_float(static_cast<Half>(d)) * kIQ1Scale;
}
static inline float stored_d(const BlockIQ2_XXS& b) { return half_to_float(b.d) * kIQ2Scale; }
static inline float stored_d(const BlockIQ2_XS& b) { return half_to_float(b.d) * kIQ2Scale; }
static inline float stored_d(const BlockIQ2_S& b) { return half_to_float(b.d) * kIQ2Scale; }
static inline float stored_d(const BlockIQ3_XXS& b) { return half_to_float(b.d) * kIQ3_XXSScale; }
static inline float stored_d(const BlockIQ3_S& b) { return half_to_float(b.d); }
static inline float stored_d(const BlockTQ1_0& b) { return half_to_float(b.d); }
static inline float stored_d(const BlockTQ2_0& b) { return half_to_float(b.d); }

static inline void decode_integers(const BlockIQ2_XXS& b, IntegerBlock* out) {
  for (int j = 0; j < 8; ++j) {
    const uint32_t aux = read_u32(b.qs[j] + 4);
    for (int l = 0; l < 4; ++l) {
      put_group<2, 8>(kGridIQ2_XXS, kIQ2Values, b.qs[j][l], kEvenSigns[aux >> (7 * l) & 127], out->q + 32 * j + 8 * l);
    }
    out->scale[2 * j] = out->scale[2 * j + 1] = odd_scale(static_cast<int>(aux >> 28));
  }
  out->d = stored_d(b);
}

static inline void decode_integers(const BlockIQ2_XS& b, IntegerBlock* out) {
  for (int g = 0; g < 32; ++g) {
    put_group<2, 8>(kGridIQ2_XS, kIQ2Values, b.qs[g] & 511, kEvenSigns[b.qs[g] >> 9], out->q + 8 * g);
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = odd_scale(nibble_of(b.scales, j));
  out->d = stored_d(b);
}

static inline void decode_integers(const BlockIQ2_S& b, IntegerBlock* out) {
  for (int g = 0; g < 32; ++g) {
    const int index = b.qs[g] | (b.qh[g / 4] >> (g % 4 * 2) & 3) << 8;
    put_group<2, 8>(kGridIQ2_S, kIQ2Values, index, b.signs[g], out->q + 8 * g);
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = odd_scale(nibble_of(b.scales, j));
  out->d = stored_d(b);
}

static inline void decode_integers(const BlockIQ3_XXS& b, IntegerBlock* out) {
  for (int j = 0; j < 8; ++j) {
    const uint32_t aux = read_u32(b.signs_scales[j]);
    for (int l = 0; l < 8; ++l) {
      const int signs = kEvenSigns[aux >> (7 * (l / 2)) & 127] >> (l % 2 * 4);
      put_group<4, 4>(kGridIQ3_XXS, kIQ3_XXSValues, b.qs[8 * j + l], signs, out->q + 32 * j + 4 * l);
    }
    out->scale[2 * j] = out->scale[2 * j + 1] = odd_scale(static_cast<int>(aux >> 28));
  }
  out->d = stored_d(b);
}

static inline void decode_integers(const BlockIQ3_S& b, IntegerBlock* out) {
  for (int g = 0; g < 64; ++g) {
    const int index = b.qs[g] | (b.qh[g / 8] >> (g % 8) & 1) << 8;
    put_group<4, 4>(kGridIQ3_S, kIQ3_SValues, index, b.signs[g / 2] >> (g % 2 * 4), out->q + 4 * g);
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = odd_scale(nibble_of(b.scales, j / 2));
  out->d = stored_d(b);
}

// q = 8 * (grid + delta)
static inline void put_ternary_group(int index, bool minus, int8_t* q) {
  put_group<2, 8>(kGridIQ1, kIQ1Values, index, 0, q);
  for (int e = 0; e < 8; ++e) q[e] = static_cast<int8_t>(q[e] + (minus ? -1 : 1));
}

static inline void decode_integers(const BlockIQ1_S& b, IntegerBlock* out) {
  for (int j = 0; j < 8; ++j) {
    const int qh = b.qh[j];
    for (int l = 0; l < 4; ++l) {
      put_ternary_group(b.qs[4 * j + l] | (qh >> (3 * l) & 7) << 8, (qh & 0x8000) != 0, out->q + 32 * j + 8 * l);
    }
    out->scale[2 * j] = out->scale[2 * j + 1] = odd_scale(qh >> 12 & 7);
  }
  out->d = stored_d(b);
}

static inline void decode_integers(const BlockIQ1_M& b, IntegerBlock* out) {
  for (int g = 0; g < 32; ++g) {
    const int qh = b.qh[g / 2] >> (g % 2 * 4) & 15;
    put_ternary_group(b.qs[g] | (qh & 7) << 8, (qh & 8) != 0, out->q + 8 * g);
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = odd_scale(b.scales[j / 4] >> (j % 4 * 3) & 7);
  out->d = stored_d(b);
}

static inline void decode_integers(const BlockTQ1_0& b, IntegerBlock* out) {
  constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  for (int i = 0; i < 256; ++i) {
    const int at = i < 160 ? i : i < 240 ? i - 160 : i - 240;
    const int run = i < 160 ? 32 : i < 240 ? 16 : 4;  // bytes that share a place
    const uint8_t byte = i < 160 ? b.qs[at % run] : i < 240 ? b.qs[32 + at % run] : b.qh[at % run];
    // The place is moved to the top of the byte; its upper part times 3 / 256 is the digit.
    const int digit = static_cast<uint8_t>(byte * kPowers[at / run]) * 3 >> 8;
    out->q[i] = static_cast<int8_t>(digit - 1);
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = 1;
  out->d = stored_d(b);
}

static inline void decode_integers(const BlockTQ2_0& b, IntegerBlock* out) {
  for (int i = 0; i < 256; ++i) {
    out->q[i] = static_cast<int8_t>((b.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1);
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = 1;
  out->d = stored_d(b);
}

}  // namespace expertree
