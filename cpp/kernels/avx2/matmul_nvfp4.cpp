// Products of NVFP4 with int8 activations (canonical.h, C4), AVX2: eight rows, 32 elements and so two scales per step.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/vector.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

namespace expertree::avx2 {
namespace {

// Two groups of 16 elements from 16 bytes: bytes 0-7 are the first.
inline __m256i expand(const uint8_t* qs) {
  const __m128i bytes = load_128(qs);
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, mask);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_128(kMXFP4Values)), codes);
}

struct NVFP4 {
  template <int kN>
  static void run(const MatmulArgs& args, int64_t row, int64_t first_column) {
    const RowGroup rows = row_group(args, row);
    Column x[kN];
    __m256 acc[kN];
    for (int c = 0; c < kN; ++c) {
      x[c] = quantized_column(args, first_column + c);
      acc[c] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < args.k / 32; ++b) {
      const std::byte* w = rows.w + b / 2 * static_cast<int64_t>(sizeof(BlockNVFP4));
      const int half = static_cast<int>(b % 2);
      __m256i partial[kN][kRows];  // the low half belongs to the first group
      alignas(32) float d[2][kRows];
      for (int i = 0; i < kRows; ++i) {
        const auto* block = reinterpret_cast<const BlockNVFP4*>(w + rows.offset[i]);
        const __m256i integers = expand(block->qs + 16 * half);
        for (int g = 0; g < 2; ++g) d[g][i] = ue4m3_to_float_half(block->d[2 * half + g]);
        for (int c = 0; c < kN; ++c) {
          const __m256i q = _mm256_sign_epi8(load_256(x[c].q + 32 * b), integers);
          const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(integers), q);
          partial[c][i] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        }
      }
      for (int c = 0; c < kN; ++c) {
        const __m256i* p = partial[c];
        const __m256i first_rows = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
        const __m256i last_rows = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
        const __m256i sums[2] = {_mm256_permute2x128_si256(first_rows, last_rows, 0x20),
                                 _mm256_permute2x128_si256(first_rows, last_rows, 0x31)};
        const __m256 dx = _mm256_set1_ps(x[c].d[b]);
        for (int g = 0; g < 2; ++g) {
          acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[g]), _mm256_mul_ps(_mm256_load_ps(d[g]), dx), acc[c]);
        }
      }
    }
    for (int c = 0; c < kN; ++c) store_rows(x[c].y + row, args.row_end - row, acc[c]);
  }
};

}  // namespace

void matmul_nvfp4(const MatmulArgs& args) { for_each_group<NVFP4>(args); }

}  // namespace expertree::avx2

#endif
