// Counter-based random numbers: a value is a pure function of its key, so it does not depend on how many numbers
// were drawn before it, by whom, or in which order.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
// checked against the known answers of the authors' Random123 library in tests/unit/test_random.py.
#pragma once

#include <cstdint>

namespace expertree {

struct PhiloxBlock {
  uint32_t words[4];
};

// Ten rounds. counter: 4 words, key: 2 words.
PhiloxBlock philox4x32_10(const uint32_t* counter, const uint32_t* key);

// 64 uniform bits for each of the tokens 2 * pair and 2 * pair + 1 at one position of one seed.
//   key     = {seed low, seed high}
//   counter = {pair, 0, position low, position high}; counter[1] is kept for other streams of the same seed
//   bits of the even token = words 0 (low) and 1 (high), of the odd token = words 2 and 3
struct TokenPairBits {
  uint64_t even;
  uint64_t odd;
};
TokenPairBits token_pair_bits(uint64_t seed, int64_t position, uint32_t pair);

// The 64 bits of one token >= 0. position: of the token being chosen, counted from 0 in its sequence.
uint64_t random_bits(uint64_t seed, int64_t position, int32_t token);

// u = (bits + 1/2) / 2^64 as a float, in (0, 1): never 0, never 1. 24 significant bits at every size of u, so values
// near 0 are as fine as 2^-65; values above 1 - 2^-25 are 1 - 2^-24. (Gumbel noise needs the upper end finer than that
// and is made from the bits: cpp/sample/gumbel.h.)
float uniform_from_bits(uint64_t bits);
float uniform_from(uint64_t seed, int64_t position, int32_t token);

// A seed for a request that gave none, from the operating system's entropy. Report it with the result.
uint64_t draw_seed();

}  // namespace expertree
