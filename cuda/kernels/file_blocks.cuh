// What each quantised format's block in a file holds, by element: codes (bits without offset, scale or table), and where
// the rest lies. Layouts: cpp/tensor/blocks.h.
#pragma once

#include <cstdint>

#include "cpp/base/host_device.h"
#include "cpp/tensor/dtype.h"

namespace expertree::cuda {

// Bytes of a block that are copied as they are.
struct Field {
  int offset;
  int bytes;
};

template <DType>
struct FileBlock;

// Formats of 32 elements, 4 bits of each in nibbles: element i low, 16 + i high.
template <int kBlockBytes, int kDBytes, int kHighOffset, int kCodesOffset>
struct NibbleBlock32 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = kBlockBytes;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = kHighOffset > 0 ? 1 : 0;
  static constexpr Field kScales{0, 0};
  static constexpr Field kD{0, kDBytes};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) {
    const uint8_t* qs = b + kCodesOffset;
    const int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
    return kHighBits > 0 ? low | (b[kHighOffset + i / 8] >> (i % 8) & 1) << 4 : low;
  }
};
template <>
struct FileBlock<DType::kQ4_0> : NibbleBlock32<18, 2, 0, 2> {};
template <>
struct FileBlock<DType::kQ4_1> : NibbleBlock32<20, 4, 0, 4> {};
template <>
struct FileBlock<DType::kQ5_0> : NibbleBlock32<22, 2, 2, 6> {};
template <>
struct FileBlock<DType::kQ5_1> : NibbleBlock32<24, 4, 4, 8> {};
template <>
struct FileBlock<DType::kIQ4_NL> : NibbleBlock32<18, 2, 0, 2> {};
template <>
struct FileBlock<DType::kMXFP4> : NibbleBlock32<17, 1, 0, 1> {};

template <>
struct FileBlock<DType::kQ8_0> {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;
  static constexpr int kLowBits = 8;
  static constexpr int kHighBits = 0;
  static constexpr Field kScales{0, 0};
  static constexpr Field kD{0, 2};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) { return b[2 + i]; }
};

// 128 elements share 32 bytes, each quarter taking two bits.
EXPERTREE_HOST_DEVICE inline int two_bits(const uint8_t* qs, int i) {
  return qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

template <>
struct FileBlock<DType::kQ2_K> {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 84;
  static constexpr int kLowBits = 2;
  static constexpr int kHighBits = 0;
  static constexpr Field kScales{0, 16};
  static constexpr Field kD{80, 4};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) { return two_bits(b + 16, i); }
};

template <>
struct FileBlock<DType::kQ3_K> {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 110;
  static constexpr int kLowBits = 2;
  static constexpr int kHighBits = 1;
  static constexpr Field kScales{96, 12};
  static constexpr Field kD{108, 2};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) {
    return two_bits(b + 32, i) | (b[i % 32] >> (i / 32) & 1) << 2;
  }
};

// 64 elements share 32 bytes: low nibbles first, then high nibbles.
EXPERTREE_HOST_DEVICE inline int nibble_of_64(const uint8_t* qs, int i) {
  const uint8_t byte = qs[i / 64 * 32 + i % 32];
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

template <>
struct FileBlock<DType::kQ4_K> {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 144;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = 0;
  static constexpr Field kScales{0, 16};
  static constexpr Field kD{0, 0};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) { return nibble_of_64(b + 16, i); }
};

template <>
struct FileBlock<DType::kQ5_K> {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 176;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = 1;
  static constexpr Field kScales{0, 16};
  static constexpr Field kD{0, 0};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) {
    return nibble_of_64(b + 48, i) | (b[16 + i % 32] >> (i / 32) & 1) << 4;
  }
};

template <>
struct FileBlock<DType::kQ6_K> {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = 2;
  static constexpr Field kScales{192, 16};
  static constexpr Field kD{208, 2};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) {
    // 128 elements share 64 bytes of low nibbles and 32 of high bits.
    const int half = i / 128;
    const int quarter = i % 128 / 32;
    const uint8_t byte = b[half * 64 + quarter % 2 * 32 + i % 32];
    return (quarter < 2 ? byte & 15 : byte >> 4) | two_bits(b + 128, i) << 4;
  }
};

template <>
struct FileBlock<DType::kIQ4_XS> {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 136;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = 0;
  static constexpr Field kScales{0, 8};
  static constexpr Field kD{0, 0};
  EXPERTREE_HOST_DEVICE static int code(const uint8_t* b, int i) {
    const uint8_t byte = b[8 + i / 32 * 16 + i % 16];
    return i % 32 < 16 ? byte & 15 : byte >> 4;
  }
};

// Calls visit.template operator()<DType>() for the quantised format; false when there is none such.
template <class Visit>
bool visit_quantised(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kQ4_0: visit.template operator()<DType::kQ4_0>(); return true;
    case DType::kQ4_1: visit.template operator()<DType::kQ4_1>(); return true;
    case DType::kQ5_0: visit.template operator()<DType::kQ5_0>(); return true;
    case DType::kQ5_1: visit.template operator()<DType::kQ5_1>(); return true;
    case DType::kQ8_0: visit.template operator()<DType::kQ8_0>(); return true;
    case DType::kIQ4_NL: visit.template operator()<DType::kIQ4_NL>(); return true;
    case DType::kMXFP4: visit.template operator()<DType::kMXFP4>(); return true;
    case DType::kQ2_K: visit.template operator()<DType::kQ2_K>(); return true;
    case DType::kQ3_K: visit.template operator()<DType::kQ3_K>(); return true;
    case DType::kQ4_K: visit.template operator()<DType::kQ4_K>(); return true;
    case DType::kQ5_K: visit.template operator()<DType::kQ5_K>(); return true;
    case DType::kQ6_K: visit.template operator()<DType::kQ6_K>(); return true;
    case DType::kIQ4_XS: visit.template operator()<DType::kIQ4_XS>(); return true;
    default: return false;
  }
}

}  // namespace expertree::cuda
