// How a weight matrix lies in device memory. GGUF's blocks of 210, 110, 84, 34 or 17 bytes can't be read 16 bytes at a
// time, so upload takes them apart into planes, each with rows of 16-byte (or smaller, stated) aligned pieces. The bits
// are the file's; only their places change.
//
// Quantised formats. A row of k elements is cut into groups of 128 (the last one of a 32-element format may be filled up
// with zero bits). A group belongs to four lanes c = 0 .. 3; lane c owns the elements
//     32 s + 16 h + 4 c + i        s = 0 .. 3, h = 0, 1, i = 0 .. 3
// that is, of each 32 elements the two words that lane c of a warp quad holds in an m16n8k32 fragment. Int8 activations
// lie in the same order (int8_rows.h), so a lane reads its 32 activations, and most weights, as 16-byte pieces.
//   codes  per lane   4 bits: 16 bytes, word s, byte i: h = 0 in the low nibble, h = 1 in the high one
//                     8 bits: 32 bytes, word 2 s + h, byte i
//                     2 bits: 8 bytes, word s / 2, byte i, bits 4 (s % 2) + 2 h and the next
//   high   per lane   1 bit:  4 bytes, byte i, bit 2 s + h;     2 bits: as above
//   scales formats of 256: the block's scale bytes as in the file. Q4_K and Q5_K: the first 16 bytes (d, dmin, scales);
//          IQ4_XS: the first 8; Q2_K and Q6_K: 16; Q3_K: 12
//   d      formats of 32: per group four d (Q4_1, Q5_1: four pairs d, m; MXFP4: four bytes e); Q2_K: d, dmin; Q3_K, Q6_K: d
// Float formats. Virtual lane v of canonical.h, C1, owns the elements 16 j + v. In 16-byte pieces of n = 4 (F32) or 8
// (F16, BF16) elements: group of 16 n elements, then v, then j; rows are filled up to a multiple of 16 n with zeros.
//   codes  the elements
//
// Planes follow one another in this order, each from a multiple of 16 bytes on and with its rows back to back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/tensor/dtype.h"

namespace expertree::cuda {

constexpr int64_t kGroup = 128;  // elements

enum Plane { kCodes = 0, kHigh = 1, kScales = 2, kD = 3, kNumPlanes = 4 };

struct PackedLayout {
  int64_t rows;
  int64_t k;
  int64_t offset[kNumPlanes];  // bytes from the start of the matrix, multiples of 16
  int64_t row_bytes[kNumPlanes];  // 0: the format has no such plane
  int64_t bytes;  // of all planes, a multiple of 16
};

// Formats that have a packed layout, and so kernels.
bool is_packable(DType dtype);

// rows * k elements of a packable format; k is a multiple of the format's block size.
PackedLayout packed_layout(DType dtype, int64_t rows, int64_t k);

// On the host: from the file's rows (any alignment) to packed planes. `packed` holds packed_layout().bytes.
void pack_rows(DType dtype, const std::byte* rows_in_file_layout, int64_t rows, int64_t k, std::byte* packed);

}  // namespace expertree::cuda
