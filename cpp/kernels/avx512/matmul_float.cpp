// Products of float weights with float activations (canonical.h, C2).
//
// One zmm accumulator per output, 4 rows x up to 4 columns of outputs at a time; 16 accumulators are combined together.
#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kRows = 4;
constexpr int kMaxColumns = 4;
constexpr int64_t kStrip = 32;  // columns whose activations stay in L2 while the rows pass by

struct F32 {
  static constexpr int64_t kBytes = 4;
  static __m512 load(const std::byte* p) { return _mm512_loadu_ps(p); }
  static __m512 load(const std::byte* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static __m512 load(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512 load(const std::byte* p, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)); }
};
struct BF16 {
  static constexpr int64_t kBytes = 2;
  static __m512 widen(__m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }
  static __m512 load(const std::byte* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static __m512 load(const std::byte* p, __mmask16 mask) { return widen(_mm256_maskz_loadu_epi16(mask, p)); }
};

// y[c][r] for kRows rows and kColumns columns. prefetch: where the rows that come next begin.
template <typename Float, int kColumns>
void block(const std::byte* const (&w)[kRows], const float* const* x, int64_t k, const std::byte* prefetch,
           __mmask8 row_mask, float* const* y) {
  __m512 acc[16] = {};  // [column][row]
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    if (kColumns == 1) {
      // The next rows in address order, at the pace of these: 4 rows of 16 elements.
      for (int64_t line = 0; line < 16 * kRows * Float::kBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(prefetch + i * kRows * Float::kBytes + line), _MM_HINT_T0);
      }
    }
    __m512 w_part[kRows];
    for (int r = 0; r < kRows; ++r) w_part[r] = Float::load(w[r] + i * Float::kBytes);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const __m512 x_part = _mm512_loadu_ps(x[c] + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[4 * c + r] = _mm512_fmadd_ps(w_part[r], x_part, acc[4 * c + r]);
    }
  }
  if (i < k) {
    const __mmask16 mask = first_lanes(k - i);
    for (int r = 0; r < kRows; ++r) {
      const __m512 w_part = Float::load(w[r] + i * Float::kBytes, mask);
      for (int c = 0; c < kColumns; ++c) {
        acc[4 * c + r] = _mm512_mask3_fmadd_ps(w_part, _mm512_maskz_loadu_ps(mask, x[c] + i), acc[4 * c + r], mask);
      }
    }
  }
  alignas(64) float out[16];
  _mm512_store_ps(out, combine_lanes_16(acc));
  for (int c = 0; c < kColumns; ++c) _mm_mask_storeu_ps(y[c], row_mask, _mm_load_ps(out + 4 * c));
}

template <typename Float>
void matmul(const MatmulArgs& args) {
  using BlockFn = void (*)(const std::byte* const(&)[kRows], const float* const*, int64_t, const std::byte*, __mmask8,
                           float* const*);
  constexpr BlockFn kBlocks[kMaxColumns] = {block<Float, 1>, block<Float, 2>, block<Float, 3>, block<Float, 4>};
  for (int64_t strip = 0; strip < args.n_columns; strip += kStrip) {
    const int64_t strip_end = min_of(args.n_columns, strip + kStrip);
    for (int64_t r = args.row_begin; r < args.row_end; r += kRows) {
      const int64_t last = min_of<int64_t>(kRows, args.row_end - r) - 1;
      const __mmask8 row_mask = static_cast<__mmask8>((2 << last) - 1);
      const std::byte* w[kRows];
      for (int64_t i = 0; i < kRows; ++i) w[i] = args.w + (r + min_of(i, last)) * args.w_row_bytes;
      const std::byte* next = r + kRows < args.row_end ? w[0] + kRows * args.w_row_bytes : w[0];
      for (int64_t c0 = strip; c0 < strip_end; c0 += kMaxColumns) {
        const int64_t n = min_of<int64_t>(kMaxColumns, strip_end - c0);
        const float* x[kMaxColumns];
        float* y[kMaxColumns];
        for (int64_t c = 0; c < n; ++c) {
          x[c] = args.x_f32 + (args.x_rows ? args.x_rows[c0 + c] : c0 + c) * args.x_stride;
          y[c] = args.y + (args.y_rows ? args.y_rows[c0 + c] : c0 + c) * args.y_stride + r;
        }
        kBlocks[n - 1](w, x, args.k, next, row_mask, y);
      }
    }
  }
}

}  // namespace

void matmul_f32(const MatmulArgs& args) { matmul<F32>(args); }
void matmul_f16(const MatmulArgs& args) { matmul<F16>(args); }
void matmul_bf16(const MatmulArgs& args) { matmul<BF16>(args); }

}  // namespace expertree::avx512

#endif
