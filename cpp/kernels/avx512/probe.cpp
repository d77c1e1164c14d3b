// What a core can do at most (kernel_table.h).
#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

uint64_t folded(__m512i v) {
  uint64_t words[8];
  std::memcpy(words, &v, sizeof(words));
  return words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
}

}  // namespace

uint64_t probe_read(const std::byte* data, int64_t size_bytes) {
  __m512i sum[4] = {};
  for (int64_t i = 0; i + 256 <= size_bytes; i += 256) {
    for (int j = 0; j < 4; ++j) sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(data + i + 64 * j));
  }
  return folded(_mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3])));
}

// 16 chains of vpdpbusd in registers.
uint64_t probe_int8(int64_t rounds) {
  __m512i sum[16] = {};
  // The compiler must not see that the chains are alike.
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) asm volatile("" : "+v"(sum[i]));
  __m512i a = _mm512_set1_epi8(3);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
    asm volatile("" : "+v"(a));
  }
  __m512i all = sum[0];
  for (int i = 1; i < 16; ++i) all = _mm512_add_epi32(all, sum[i]);
  return folded(all);
}

}  // namespace expertree::avx512

#endif
