// What a core can do at most, in plain code (kernel_table.h).
#include <cstring>

#include "cpp/kernels/scalar/kernels.h"

namespace expertree::scalar {

uint64_t probe_read(const std::byte* data, int64_t size_bytes) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i + 64 <= size_bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, data + i, 64);
    for (int j = 0; j < 8; ++j) sum[j] ^= words[j];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

}  // namespace expertree::scalar
