// What recurrent layers are made of.
#pragma once

#include <cstdint>

namespace expertree {

// What a layer has before its feed-forward part.
enum class Mixer : uint8_t {
  kAttention,
  kDeltaNet,  // gated delta net: a state matrix per head, moved on token by token
  kShortConv,  // gated causal convolution over a few tokens
};

constexpr int64_t kMostTaps = 64;  // of a convolution; files that ask for more are refused

// Layers whose memory of the past does not grow with it.
struct RecurrentParameters {
  int64_t n_taps = 0;  // of the causal convolution, the current token's included; 0: the model has no such layers
  int64_t n_channels = 0;  // that it runs over
  // Delta net; a short convolution has no heads.
  int64_t n_key_heads = 0;
  int64_t n_value_heads = 0;
  int64_t head_dim = 0;  // of keys, queries and values
  bool neighbours_share_key = false;  // value head j uses key head j / (values per key); else j % n_key_heads

  int64_t n_keys() const { return n_key_heads * head_dim; }
  int64_t n_values() const { return n_value_heads * head_dim; }
  int64_t state_floats() const { return n_values() * head_dim; }  // of one layer
};

}  // namespace expertree
