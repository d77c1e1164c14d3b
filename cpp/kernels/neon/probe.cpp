// What a core can read at most (kernel_table.h).
#if defined(__aarch64__)

#include "cpp/kernels/neon/kernels.h"
#include "cpp/kernels/neon/vector.h"

namespace expertree::neon {

uint64_t probe_read(const std::byte* data, int64_t size_bytes) {
  uint8x16_t sum[4];
  for (int j = 0; j < 4; ++j) sum[j] = vdupq_n_u8(0);
  for (int64_t i = 0; i + 64 <= size_bytes; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = veorq_u8(sum[j], load_bytes(data + i + 16 * j));
  }
  const uint8x16_t all = veorq_u8(veorq_u8(sum[0], sum[1]), veorq_u8(sum[2], sum[3]));
  const uint64x2_t words = vreinterpretq_u64_u8(all);
  return vgetq_lane_u64(words, 0) ^ vgetq_lane_u64(words, 1);
}

}  // namespace expertree::neon

#endif
