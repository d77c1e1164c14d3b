#include "cpp/base/random.h"

#include <chrono>
#include <exception>
#include <random>

namespace expertree {

PhiloxBlock philox4x32_10(const uint32_t* counter, const uint32_t* key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;  // sqrt(3) - 1
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c0;
    const uint64_t product1 = kMultiplier1 * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

TokenPairBits token_pair_bits(uint64_t seed, int64_t position, uint32_t pair) {
  const uint64_t place = static_cast<uint64_t>(position);
  const uint32_t counter[4] = {pair, 0, static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32)};
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const PhiloxBlock block = philox4x32_10(counter, key);
  return {block.words[0] | static_cast<uint64_t>(block.words[1]) << 32,
          block.words[2] | static_cast<uint64_t>(block.words[3]) << 32};
}

uint64_t random_bits(uint64_t seed, int64_t position, int32_t token) {
  const TokenPairBits bits = token_pair_bits(seed, position, static_cast<uint32_t>(token) >> 1);
  return (token & 1) != 0 ? bits.odd : bits.even;
}

float uniform_from_bits(uint64_t bits) {
  const float u = (static_cast<float>(bits) + 0.5f) * 0x1p-64f;
  return u < 1.0f ? u : 0x1.fffffep-1f;
}

float uniform_from(uint64_t seed, int64_t position, int32_t token) {
  return uniform_from_bits(random_bits(seed, position, token));
}

uint64_t draw_seed() {
  uint32_t entropy[4] = {0, 0, 0, 0};
  try {
    std::random_device device;
    for (uint32_t& word : entropy) word = device();
  } catch (const std::exception&) {
    // No entropy source: what is mixed in below still tells requests apart.
  }
  const uint64_t now = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  const uint64_t stack = reinterpret_cast<uintptr_t>(&entropy);
  const uint32_t key[2] = {static_cast<uint32_t>(now), static_cast<uint32_t>(now >> 32) ^ static_cast<uint32_t>(stack)};
  const PhiloxBlock block = philox4x32_10(entropy, key);
  return block.words[0] | static_cast<uint64_t>(block.words[1]) << 32;
}

}  // namespace expertree
