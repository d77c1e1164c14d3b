// A model's weights by role. Matrices point into an arena; small vectors are float.
#pragma once

#include <vector>

#include "cpp/base/memory.h"
#include "cpp/experts/expert_index.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/tensor/weight.h"

namespace expertree {

using FloatVector = std::vector<float>;  // empty: the model has none
inline const float* data_or_null(const FloatVector& x) { return x.empty() ? nullptr : x.data(); }

// Latent attention; the rest of it is in AttentionWeights.
struct LatentWeights {
  WeightMatrix q_down;   // [q_rank][n_embd]
  WeightMatrix kv_down;  // [kv_rank + n_rot][n_embd]
  WeightMatrix k_up;     // [n_heads * kv_rank][n_nope]: a head's query to the compressed past
  WeightMatrix kv_up;    // [n_heads * (n_nope + head_dim_v)][kv_rank], of files without k_up
  std::vector<WeightMatrix> v_up;  // per head [head_dim_v][kv_rank]
  WeightMatrix v_up_all;           // [n_heads * head_dim_v][kv_rank]
  FloatVector q_norm;   // [q_rank]
  FloatVector kv_norm;  // [kv_rank]
};

struct AttentionWeights {
  WeightMatrix q, k, v, output;
  WeightMatrix gate;  // [n_heads * head_dim_v][n_embd], behind each head's output; of files it is part of q
  WeightMatrix qkv;  // of files that have the three in one; q, k and v are rows of it
  FloatVector q_bias, k_bias, v_bias, gate_bias, output_bias;
  FloatVector q_norm, k_norm;  // [head_dim] or [whole projection]
  FloatVector sinks;           // [n_heads]
  LatentWeights latent;
};

// A layer of the gated delta net.
struct DeltaNetWeights {
  WeightMatrix qkv;     // [n_channels][n_embd]: queries and keys of all key heads, values of all value heads
  WeightMatrix gate;    // [n_values][n_embd], of the output
  WeightMatrix alpha;   // [n_value_heads][n_embd]: decay = exp(softplus(alpha x + dt) * a)
  WeightMatrix beta;    // [n_value_heads][n_embd]
  WeightMatrix output;  // [n_embd][n_values]
  FloatVector conv;     // [n_taps][n_channels]
  FloatVector dt, a;    // [n_value_heads]
  FloatVector norm;     // [head_dim], of each head's output
};

// A short convolution: in gives b, c, x; out reads c * conv(b * x).
struct ShortConvWeights {
  WeightMatrix in;      // [3 * n_embd][n_embd]
  WeightMatrix output;  // [n_embd][n_embd]
  FloatVector conv;     // [n_taps][n_embd]
};

struct FeedForwardWeights {
  WeightMatrix gate, up, down;
  FloatVector gate_bias, up_bias;  // [n_ff]
  FloatVector down_bias;           // [n_embd]

  bool biased() const { return !gate_bias.empty() || !up_bias.empty() || !down_bias.empty(); }
};

struct MoeWeights {
  int64_t moe_layer = -1;  // index into the expert index
  WeightMatrix router;     // [n_experts][n_embd]
  FloatVector router_bias;     // [n_experts]
  FloatVector router_norm;     // [n_embd]
  FloatVector selection_bias;  // [n_experts]
  FloatVector gate_bias, up_bias, down_bias;  // [n_experts][rows]
  FloatVector norm;         // [n_embd]: experts read a norm of their own
  FloatVector beside_norm;  // [n_embd], behind what runs beside the experts
  FloatVector sum_norm;     // [n_embd], behind the sum of the experts
  FeedForwardWeights shared;
  WeightMatrix shared_gate;  // [1][n_embd]
};

struct LayerWeights {
  FloatVector attn_norm, ffn_norm;            // [n_embd]
  FloatVector attn_norm_bias, ffn_norm_bias;  // [n_embd]
  FloatVector post_attention_norm, post_feed_forward_norm;
  FloatVector output_scale;  // [1]
  AttentionWeights attention;  // of these three the one that the layer's mixer reads
  DeltaNetWeights delta_net;
  ShortConvWeights short_conv;
  FeedForwardWeights dense;  // present when moe.moe_layer < 0, or beside experts
  MoeWeights moe;
};

struct ModelWeights {
  WeightMatrix token_embd;  // [n_vocab][n_embd]
  WeightMatrix output;      // [n_vocab][n_embd]; token_embd itself when tied
  FloatVector output_norm, output_norm_bias;
  FloatVector output_bias;  // [n_vocab]
  // [n_rot / 2], divides each pair's frequency; empty: all 1. With long factors these are the short ones.
  FloatVector rope_factors;
  FloatVector rope_factors_long;
  std::vector<LayerWeights> layers;
  ExpertIndex experts;
  std::vector<FloatVector> computed;  // matrices made at loading
};

// What a model consists of.
struct ModelParts {
  HyperParameters h;
  ModelWeights weights;
  PageBuffer arena;  // that the weights lie in
};

}  // namespace expertree
