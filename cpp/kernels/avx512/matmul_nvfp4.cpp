// Products of NVFP4 with int8 activations (canonical.h, C4): sixteen rows side by side, a group of 16 elements per step.
#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/panel_bytes.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int64_t kColumnsAtOnce = 4;
constexpr int kOffset = 12;  // makes the values unsigned

// Values of two groups: w[g][t] has elements 4t .. 4t+3 of group g, a lane being a row.
inline void expand(const std::byte* qs, int64_t stride, __m512i (&w)[2][4]) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kMXFP4Values));
  const __m512i table = _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8(kOffset)));
  __m512i v[4];
  load_rows(qs, stride, v);
  for (int g = 0; g < 2; ++g) {
    for (int t = 0; t < 2; ++t) {
      w[g][t] = _mm512_shuffle_epi8(table, low_nibbles(v[2 * g + t]));
      w[g][2 + t] = _mm512_shuffle_epi8(table, high_nibbles(v[2 * g + t]));
    }
  }
}

// Rows of one block of 64 at p for n columns from `first` on. acc: [n][16].
void add_block(const MatmulArgs& args, const std::byte* p, int64_t stride, int64_t b, int64_t first, int64_t n,
               float (*acc)[kPanelRows]) {
  const QuantizedRows& x = *args.x_q;
  for (int half = 0; half < 2; ++half) {
    __m512i w[2][4];
    expand(p + offsetof(BlockNVFP4, qs) + 16 * half, stride, w);
    for (int g = 0; g < 2; ++g) {
      alignas(64) float d[kPanelRows];
      for (int r = 0; r < kPanelRows; ++r) {
        d[r] = ue4m3_to_float_half(static_cast<uint8_t>(p[r * stride + 2 * half + g]));
      }
      for (int64_t c = 0; c < n; ++c) {
        const int64_t row = args.x_rows ? args.x_rows[first + c] : first + c;
        const int8_t* q = x.q + row * x.q_stride + b * 64 + half * 32 + g * 16;
        __m512i sum = _mm512_set1_epi32(-kOffset * x.sums16[row * x.sums_stride + b * 4 + half * 2 + g]);
        for (int t = 0; t < 4; ++t) sum = _mm512_dpbusd_epi32(sum, w[g][t], _mm512_set1_epi32(load_i32(q + 4 * t)));
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(d), set1(x.d[row * x.d_stride + b * 2 + half]));
        _mm512_store_ps(acc[c], _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_load_ps(acc[c])));
      }
    }
  }
}

}  // namespace

void matmul_nvfp4(const MatmulArgs& args) {
  constexpr int64_t kBytes = sizeof(BlockNVFP4);
  for (int64_t row = args.row_begin; row < args.row_end; row += kPanelRows) {
    const int64_t n_rows = min_of<int64_t>(kPanelRows, args.row_end - row);
    for (int64_t first = 0; first < args.n_columns; first += kColumnsAtOnce) {
      const int64_t n = min_of(kColumnsAtOnce, args.n_columns - first);
      alignas(64) float acc[kColumnsAtOnce][kPanelRows] = {};
      for (int64_t b = 0; b < args.k / 64; ++b) {
        const std::byte* p = args.w + row * args.w_row_bytes + b * kBytes;
        std::byte copy[kPanelRows * kBytes] = {};
        if (n_rows < kPanelRows) {
          for (int64_t r = 0; r < n_rows; ++r) std::memcpy(copy + r * kBytes, p + r * args.w_row_bytes, kBytes);
        }
        const bool whole = n_rows == kPanelRows;
        add_block(args, whole ? p : copy, whole ? args.w_row_bytes : kBytes, b, first, n, acc);
      }
      for (int64_t c = 0; c < n; ++c) {
        float* y = args.y + (args.y_rows ? args.y_rows[first + c] : first + c) * args.y_stride + row;
        _mm512_mask_storeu_ps(y, first_lanes(n_rows), _mm512_load_ps(acc[c]));
      }
    }
  }
}

}  // namespace expertree::avx512

#endif
