// Byte layouts of GGUF's block-quantised formats, with their sizes asserted.
// Every field is little-endian. Blocks lie at any byte offset: read through memcpy or unaligned loads.
#pragma once

#include <cstdint>

namespace expertree {

using Half = uint16_t;  // IEEE binary16, as stored

#pragma pack(push, 1)

// 32 elements. Nibble order: element i in the low nibble of qs[i], element 16 + i in its high nibble.
struct BlockQ4_0 {  // w = d * (q - 8)
  Half d;
  uint8_t qs[16];
};
struct BlockQ4_1 {  // w = d * q + m
  Half d;
  Half m;
  uint8_t qs[16];
};
struct BlockQ5_0 {  // w = d * (q - 16); bit i of qh is bit 4 of element i
  Half d;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ5_1 {  // w = d * q + m
  Half d;
  Half m;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ8_0 {  // w = d * q
  Half d;
  int8_t qs[32];
};
struct BlockIQ4_NL {  // w = d * kIQ4Values[q]
  Half d;
  uint8_t qs[16];
};
struct BlockMXFP4 {  // w = 2^(e - 128) * kMXFP4Values[q]; the table holds twice the E2M1 value
  uint8_t e;
  uint8_t qs[16];
};

// 64 elements in four groups of 16, each as 8 bytes: elements 0-7 in the low nibbles, 8-15 in the high ones.
struct BlockNVFP4 {  // w = ue4m3(d[j]) / 2 * kMXFP4Values[q]; j = group
  uint8_t d[4];
  uint8_t qs[32];
};

// 256 elements.
struct BlockQ2_K {  // w = d * (scales[j] & 15) * q - dmin * (scales[j] >> 4); j = sub-block of 16
  uint8_t scales[16];
  uint8_t qs[64];
  Half d;
  Half dmin;
};
struct BlockQ3_K {  // w = d * (sc[j] - 32) * (q - 4); j = sub-block of 16; hmask holds bit 2
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  Half d;
};
struct BlockQ4_K {  // w = d * sc[j] * q - dmin * mn[j]; j = sub-block of 32; 6-bit sc, mn packed in scales
  Half d;
  Half dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
struct BlockQ5_K {  // as Q4_K with a fifth bit in qh
  Half d;
  Half dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
struct BlockQ6_K {  // w = d * scales[j] * (q - 32); j = sub-block of 16
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  Half d;
};
struct BlockIQ4_XS {  // w = d * (sc[j] - 32) * kIQ4Values[q]; j = sub-block of 32
  Half d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};

// Ternary: w = d * (q - 1).
struct BlockTQ1_0 {  // five q in a byte as (q0 * 81 + q1 * 27 + q2 * 9 + q3 * 3 + q4) * 256 / 243, rounded up
  uint8_t qs[48];    // 32 bytes hold elements m + 32 * n, n < 5; the next 16 hold 160 + m + 16 * n
  uint8_t qh[4];     // 240 + m + 4 * n, n < 4
  Half d;
};
struct BlockTQ2_0 {  // two bits, as in Q2_K's qs
  uint8_t qs[64];
  Half d;
};

// Code books (iq_grids.h): groups of 8 or 4 elements are an index; j = sub-block; signs are one bit per element or, with
// an even number of minus signs, seven bits per 8 elements.
struct BlockIQ1_S {  // w = d * (2 * sc[j] + 1) * (grid + delta[j]); j of 32; delta = +-1/8
  Half d;
  uint8_t qs[32];    // low 8 bits of the index
  uint16_t qh[8];    // per sub-block: 4 times the upper 3 bits, sc, sign of delta
};
struct BlockIQ1_M {  // sc per 16, delta per 8
  uint8_t qs[32];
  uint8_t qh[16];      // per 16 elements: twice the upper 3 bits and the sign of delta
  uint16_t scales[4];  // four sc of 3 bits each; the top nibbles are d
};
struct BlockIQ2_XXS {  // w = d / 8 * (2 * sc[j] + 1) * +-grid; j of 32
  Half d;
  uint8_t qs[8][8];  // per sub-block: 4 indices, then 32 bits: 4 times 7 signs, sc
};
struct BlockIQ2_XS {  // j of 16
  Half d;
  uint16_t qs[32];    // index of 9 bits, 7 signs
  uint8_t scales[8];  // nibbles
};
struct BlockIQ2_S {  // j of 16
  Half d;
  uint8_t qs[32];  // low 8 bits of the index
  uint8_t signs[32];
  uint8_t qh[8];  // its upper 2 bits
  uint8_t scales[8];
};
struct BlockIQ3_XXS {  // w = d / 4 * (2 * sc[j] + 1) * +-grid; j of 32; groups of 4
  Half d;
  uint8_t qs[64];
  uint8_t signs_scales[8][4];  // per sub-block 32 bits: 4 times 7 signs, sc
};
struct BlockIQ3_S {  // w = d * (2 * sc[j] + 1) * +-grid; j of 32
  Half d;
  uint8_t qs[64];  // low 8 bits of the index
  uint8_t qh[8];   // its top bit
  uint8_t signs[32];
  uint8_t scales[4];  // nibbles
};

#pragma pack(pop)

static_assert(sizeof(BlockQ4_0) == 18);
static_assert(sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34);
static_assert(sizeof(BlockIQ4_NL) == 18);
static_assert(sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110);
static_assert(sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockIQ4_XS) == 136);
static_assert(sizeof(BlockNVFP4) == 36);
static_assert(sizeof(BlockTQ1_0) == 54);
static_assert(sizeof(BlockTQ2_0) == 66);
static_assert(sizeof(BlockIQ1_S) == 50);
static_assert(sizeof(BlockIQ1_M) == 56);
static_assert(sizeof(BlockIQ2_XXS) == 66);
static_assert(sizeof(BlockIQ2_XS) == 74);
static_assert(sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98);
static_assert(sizeof(BlockIQ3_S) == 110);

constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMXFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace expertree
