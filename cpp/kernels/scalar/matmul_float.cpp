// Products of float weights with float activations (canonical.h, C2).
#include <cmath>
#include <cstring>

#include "cpp/kernels/canonical.h"
#include "cpp/kernels/scalar/kernels.h"
#include "cpp/tensor/half.h"

namespace expertree::scalar {
namespace {

float load_f32(const std::byte* p) {
  float value;
  std::memcpy(&value, p, 4);
  return value;
}
float load_f16(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_to_float(bits);
}
float load_bf16(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bfloat16_to_float(bits);
}

template <float (*kLoad)(const std::byte*), int kBytes>
void matmul(const MatmulArgs& args) {
  for (int64_t c = 0; c < args.n_columns; ++c) {
    const float* x = args.x_f32 + (args.x_rows ? args.x_rows[c] : c) * args.x_stride;
    float* y = args.y + (args.y_rows ? args.y_rows[c] : c) * args.y_stride;
    for (int64_t r = args.row_begin; r < args.row_end; ++r) {
      const std::byte* w = args.w + r * args.w_row_bytes;
      float lane[kLanes] = {};
      for (int64_t i = 0; i < args.k; ++i) lane[i % kLanes] = std::fma(kLoad(w + i * kBytes), x[i], lane[i % kLanes]);
      y[r] = combine_lanes(lane);
    }
  }
}

}  // namespace

void matmul_f32(const MatmulArgs& args) { matmul<load_f32, 4>(args); }
void matmul_f16(const MatmulArgs& args) { matmul<load_f16, 2>(args); }
void matmul_bf16(const MatmulArgs& args) { matmul<load_bf16, 2>(args); }

}  // namespace expertree::scalar
