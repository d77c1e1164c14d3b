// Gumbel noise G = -log(-log u) of a token: the argmax over tokens of (log p + G) is a draw from p.
//
// One value per (seed, position, token), the same for the target's sampler and for every drafter that wants to agree
// with it (coupled drafting). u = (bits + 1/2) / 2^64 is never rounded to a float as such:
//   u < 3/4    -log u from u as a float, 24 significant bits, down to 2^-65          G from -3.81
//   u >= 3/4   1 - u = (~bits + 1/2) / 2^64 as a float, 24 significant bits again,
//              and -log1p(-(1 - u)) from it                                          G up to 45.05
// so that both tails keep their resolution; the upper one is what decides between likely and unlikely tokens. With a
// plain float u, every noise value above 16 would be the same number.
// Logarithms are canonical_log's (cpp/kernels/canonical_math.h): the same bits on every machine.
#pragma once

#include <bit>
#include <cstdint>

#include "cpp/base/random.h"

namespace expertree {

float gumbel_from_bits(uint64_t bits);
float gumbel_noise(uint64_t seed, int64_t position, int32_t token);

// At least gumbel_from_bits(bits), for a few cycles: -log(-log u) <= -log(1 - u), and 1 - u >= 2^-(1 + leading ones).
static inline float gumbel_upper_bound(uint64_t bits) {
  return static_cast<float>(std::countl_one(bits) + 1) * 0.6931472f + 1e-3f;
}

}  // namespace expertree
