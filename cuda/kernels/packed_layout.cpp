#include "cuda/kernels/packed_layout.h"

#include "cuda/kernels/file_blocks.cuh"

namespace expertree::cuda {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

}  // namespace

bool is_packable(DType dtype) {
  return is_float(dtype) || visit_quantised(dtype, []<DType>() {});
}

PackedLayout packed_layout(DType dtype, int64_t rows, int64_t k) {
  PackedLayout layout{rows, k, {}, {}, 0};
  if (is_float(dtype)) {
    const int64_t element_bytes = dtype == DType::kF32 ? 4 : 2;
    layout.row_bytes[kCodes] = round_up(k, 16 * 16 / element_bytes) * element_bytes;
  } else {
    visit_quantised(dtype, [&]<DType kType>() {
      using Block = FileBlock<kType>;
      const int64_t groups = (k + kGroup - 1) / kGroup;
      const int64_t blocks = groups * kGroup / Block::kElements;
      layout.row_bytes[kCodes] = groups * kGroup * Block::kLowBits / 8;
      layout.row_bytes[kHigh] = groups * kGroup * Block::kHighBits / 8;
      layout.row_bytes[kScales] = blocks * Block::kScales.bytes;
      layout.row_bytes[kD] = blocks * Block::kD.bytes;
    });
  }
  for (int plane = 0; plane < kNumPlanes; ++plane) {
    layout.offset[plane] = layout.bytes;
    layout.bytes += round_up(rows * layout.row_bytes[plane], 16);
  }
  return layout;
}

}  // namespace expertree::cuda
