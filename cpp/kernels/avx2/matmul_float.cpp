// Products of float weights with float activations (canonical.h, C2), AVX2. The 16 lanes of an output are two
// registers; four outputs advance together, so that eight chains of fused multiply-adds hide their latency.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/vector.h"

namespace expertree::avx2 {
namespace {

struct WeightF32 {
  static constexpr int64_t kBytes = 4;
  static __m256 load(const std::byte* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct WeightF16 {
  static constexpr int64_t kBytes = 2;
  static __m256 load(const std::byte* p) { return _mm256_cvtph_ps(load_128(p)); }
};
struct WeightBF16 {
  static constexpr int64_t kBytes = 2;
  static __m256 load(const std::byte* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16));
  }
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
    __m256 low[kR][kC];
    __m256 high[kR][kC];
    for (int r = 0; r < kR; ++r) {
      for (int c = 0; c < kC; ++c) low[r][c] = high[r][c] = _mm256_setzero_ps();
    }
    int64_t i = 0;
    for (; i + 16 <= args.k; i += 16) {
#pragma GCC unroll 4
      for (int r = 0; r < kR; ++r) {
        const __m256 w0 = Weight::load(w[r] + i * kBytes);
        const __m256 w1 = Weight::load(w[r] + (i + 8) * kBytes);
#pragma GCC unroll 4
        for (int c = 0; c < kC; ++c) {
          low[r][c] = _mm256_fmadd_ps(w0, _mm256_loadu_ps(x[c] + i), low[r][c]);
          high[r][c] = _mm256_fmadd_ps(w1, _mm256_loadu_ps(x[c] + i + 8), high[r][c]);
        }
      }
    }
    if (i < args.k) {
      const __m256i m0 = tail_mask(args.k - i);
      const __m256i m1 = tail_mask(args.k - i - 8);
      for (int r = 0; r < kR; ++r) {
        std::byte tail[16 * kBytes] = {};
        std::memcpy(tail, w[r] + i * kBytes, static_cast<size_t>((args.k - i) * kBytes));
        const __m256 w0 = Weight::load(tail);
        const __m256 w1 = Weight::load(tail + 8 * kBytes);
        for (int c = 0; c < kC; ++c) {
          const __m256 x0 = _mm256_maskload_ps(x[c] + i, m0);
          const __m256 x1 = _mm256_maskload_ps(x[c] + i + 8, m1);
          // A lane can hold -0 (an underflow), and fma(0, 0, -0) would be +0: keep lanes that have no element.
          low[r][c] = select(m0, _mm256_fmadd_ps(w0, x0, low[r][c]), low[r][c]);
          high[r][c] = select(m1, _mm256_fmadd_ps(w1, x1, high[r][c]), high[r][c]);
        }
      }
    }
    for (int r = 0; r < kR && r < n_rows; ++r) {
      for (int c = 0; c < kC; ++c) y[c][row + r] = combine(low[r][c], high[r][c]);
    }
  }

  template <int kR, int kC>
  static void rows(const MatmulArgs& args, int64_t row, int64_t n_rows, int64_t column) {
    for (int64_t r = 0; r < n_rows; r += kR) block<kR, kC>(args, row + r, n_rows - r < kR ? n_rows - r : kR, column);
  }

  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t column) {
    const int64_t left = args.row_end - row;
    rows<kN == 1 ? 4 : kN == 2 ? 2 : 1, kN>(args, row, left < kRows ? left : kRows, column);
  }
};

}  // namespace

void matmul_f32(const MatmulArgs& args) { for_each_group<Kernel<WeightF32>>(args); }
void matmul_f16(const MatmulArgs& args) { for_each_group<Kernel<WeightF16>>(args); }
void matmul_bf16(const MatmulArgs& args) { for_each_group<Kernel<WeightBF16>>(args); }

}  // namespace expertree::avx2

#endif
