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

constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMXFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace expertree
