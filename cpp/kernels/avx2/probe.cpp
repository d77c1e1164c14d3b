// What a core can do at most (kernel_table.h).
#include "cpp/kernels/avx2/kernels.h"

#if defined(__AVX2__)

#include <immintrin.h>

#include <cstring>

namespace expertree::avx2 {
namespace {

uint64_t folded(__m256i v) {
  uint64_t words[4];
  std::memcpy(words, &v, sizeof(words));
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

}  // namespace

uint64_t probe_read(const std::byte* data, int64_t size_bytes) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i + 128 <= size_bytes; i += 128) {
    for (int j = 0; j < 4; ++j) {
      sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  return folded(_mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3])));
}

// Four chains of what 256 int8 products and their sums take at least: eight products that add up in 16 bits, then one that
// widens them (panel.h).
uint64_t probe_int8(int64_t rounds) {
  __m256i sum[4] = {};
  // The compiler must not see that the chains are alike.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) asm volatile("" : "+x"(sum[i]));
  __m256i a = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t r = 0; r < rounds; ++r) {
    __m256i sum16[4] = {};
#pragma GCC unroll 8
    for (int step = 0; step < 8; ++step) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        asm volatile("" : "+x"(a));  // else the products would be made once for all chains
        sum16[i] = _mm256_add_epi16(sum16[i], _mm256_maddubs_epi16(a, a));
        asm volatile("" : "+x"(sum16[i]));
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(sum16[i], ones));
  }
  __m256i all = sum[0];
  for (int i = 1; i < 4; ++i) all = _mm256_add_epi32(all, sum[i]);
  return folded(all);
}

}  // namespace expertree::avx2

#endif
