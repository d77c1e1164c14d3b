// Products of float weights with float activations (canonical.h, C2), NEON. The 16 lanes of an output are four
// registers; four outputs advance together, so that 16 chains of fused multiply-adds hide their latency.
#if defined(__aarch64__)

#include "cpp/kernels/neon/kernels.h"
#include "cpp/kernels/neon/vector.h"
#include "cpp/tensor/half.h"

namespace expertree::neon {
namespace {

struct WeightF32 {
  static constexpr int64_t kBytes = 4;
  static float32x4_t load(const std::byte* p) { return vreinterpretq_f32_u8(load_bytes(p)); }
  static float one(const std::byte* p) {
    float value;
    std::memcpy(&value, p, 4);
    return value;
  }
};
inline uint16_t load_u16(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}
inline uint16x4_t load_four_u16(const std::byte* p) {
  return vreinterpret_u16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(p)));
}
struct WeightF16 {
  static constexpr int64_t kBytes = 2;
  static float32x4_t load(const std::byte* p) { return from_halves(load_four_u16(p)); }
  static float one(const std::byte* p) { return half_to_float(load_u16(p)); }
};
struct WeightBF16 {
  static constexpr int64_t kBytes = 2;
  static float32x4_t load(const std::byte* p) { return vreinterpretq_f32_u32(vshll_n_u16(load_four_u16(p), 16)); }
  static float one(const std::byte* p) { return bfloat16_to_float(load_u16(p)); }
};

template <typename Weight>
struct Kernel {
  static constexpr int64_t kBytes = Weight::kBytes;

  // kR rows times kC columns. n_rows <= kR; a missing row repeats the last one.
  template <int kR, int kC>
  static void block(const MatmulArgs& args, int64_t row, int64_t n_rows, int64_t column) {
    const std::byte* w[kR];
    const float* x[kC];
    float* y[kC];
    for (int r = 0; r < kR; ++r) w[r] = args.w + (row + (r < n_rows ? r : n_rows - 1)) * args.w_row_bytes;
    for (int c = 0; c < kC; ++c) {
      x[c] = args.x_f32 + (args.x_rows ? args.x_rows[column + c] : column + c) * args.x_stride;
      y[c] = args.y + (args.y_rows ? args.y_rows[column + c] : column + c) * args.y_stride;
    }
    Lanes acc[kR][kC];
    for (int r = 0; r < kR; ++r) {
      for (int c = 0; c < kC; ++c) acc[r][c] = zero_lanes();
    }
    int64_t i = 0;
    for (; i + 16 <= args.k; i += 16) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 4
        for (int r = 0; r < kR; ++r) {
          const float32x4_t weight = Weight::load(w[r] + (i + 4 * j) * kBytes);
#pragma GCC unroll 4
          for (int c = 0; c < kC; ++c) {
            acc[r][c].v[j] = vfmaq_f32(acc[r][c].v[j], weight, vld1q_f32(x[c] + i + 4 * j));
          }
        }
      }
    }
    const int64_t left = args.k - i;
    for (int r = 0; r < kR && r < n_rows; ++r) {
      float tail[kLanes];
      for (int64_t e = 0; e < left; ++e) tail[e] = Weight::one(w[r] + (i + e) * kBytes);
      for (int c = 0; c < kC; ++c) y[c][row + r] = combine_after(acc[r][c], tail, x[c] + i, left);
    }
  }

  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t column) {
    constexpr int kR = kN == 1 ? 4 : kN == 2 ? 2 : 1;
    const int64_t n_rows = args.row_end - row < kRows ? args.row_end - row : kRows;
    for (int64_t r = 0; r < n_rows; r += kR) {
      block<kR, kN>(args, row + r, n_rows - r < kR ? n_rows - r : kR, column);
    }
  }
};

}  // namespace

void matmul_f32(const MatmulArgs& args) { for_each_group<Kernel<WeightF32>>(args); }
void matmul_f16(const MatmulArgs& args) { for_each_group<Kernel<WeightF16>>(args); }
void matmul_bf16(const MatmulArgs& args) { for_each_group<Kernel<WeightBF16>>(args); }

}  // namespace expertree::neon

#endif
