#include "cpp/sample/gumbel.h"

#include "cpp/kernels/canonical_math.h"

namespace expertree {

float gumbel_from_bits(uint64_t bits) {
  constexpr uint64_t kThreeQuarters = uint64_t{3} << 62;
  float exponential;  // -log u
  if (bits < kThreeQuarters) {
    exponential = -canonical_log((static_cast<float>(bits) + 0.5f) * 0x1p-64f);
  } else {
    const float complement = (static_cast<float>(~bits) + 0.5f) * 0x1p-64f;
    exponential = -canonical_log1p_poly(-complement, 0.0f);
  }
  return -canonical_log(exponential);
}

float gumbel_noise(uint64_t seed, int64_t position, int32_t token) {
  return gumbel_from_bits(random_bits(seed, position, token));
}

}  // namespace expertree
