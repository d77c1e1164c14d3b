// A model's weights by role. Matrices point into an arena; small vectors are float.
#pragma once

#include <vector>

#include "cpp/base/memory.h"
#include "cpp/experts/expert_index.h"
#include "cpp/tensor/weight.h"

namespace expertree {

using FloatVector = std::vector<float>;  // empty: the model has none

struct AttentionWeights {
  WeightMatrix q, k, v, output;
  FloatVector q_bias, k_bias, v_bias, output_bias;
  FloatVector q_norm, k_norm;  // [head_dim] or [whole projection]
};

// A layer of the gated delta net.
struct DeltaNetWeights {
  WeightMatrix qkv;    // [n_channels][n_embd]: queries and keys of all key heads, values of all value heads
  WeightMatrix gate;   // [n_values][n_embd], of the output
  WeightMatrix alpha;  // [n_value_heads][n_embd]: decay = exp(softplus(alpha x + dt) * a)
  WeightMatrix beta;   // [n_value_heads][n_embd]
  WeightMatrix output;  // [n_embd][n_values]
  FloatVector conv;     // [n_taps][n_channels]
  FloatVector dt, a;    // [n_value_heads]
  FloatVector norm;     // [head_dim], of each head's output
};

// A short convolution: in gives b, c, x; out reads c * conv(b * x).
struct ShortConvWeights {
  WeightMatrix in;    // [3 * n_embd][n_embd]
  WeightMatrix output;  // [n_embd][n_embd]
  FloatVector conv;   // [n_taps][n_embd]
};

struct FeedForwardWeights {
  WeightMatrix gate, up, down;
};

struct MoeWeights {
  int64_t moe_layer = -1;  // index into the expert index
  WeightMatrix router;     // [n_experts][n_embd]
  FeedForwardWeights shared;
  WeightMatrix shared_gate;  // [1][n_embd]
};

struct LayerWeights {
  FloatVector attn_norm, ffn_norm;  // [n_embd]
  AttentionWeights attention;  // of these three the one that the layer's mixer reads
  DeltaNetWeights delta_net;
  ShortConvWeights short_conv;
  FeedForwardWeights dense;  // present when moe.moe_layer < 0
  MoeWeights moe;
};

struct ModelWeights {
  WeightMatrix token_embd;  // [n_vocab][n_embd]
  WeightMatrix output;      // [n_vocab][n_embd]; token_embd itself when tied
  FloatVector output_norm;
  FloatVector rope_factors;  // [n_rot / 2], divides each pair's frequency; empty: all 1
  std::vector<LayerWeights> layers;
  ExpertIndex experts;
};

}  // namespace expertree
