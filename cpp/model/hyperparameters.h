// What a model's metadata says, typed and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace expertree {

enum class RopeStyle : uint8_t {
  kConsecutive,  // pairs (2i, 2i + 1); GGUF's NORM
  kSplitHalf     // pairs (i, i + n_rot / 2); GGUF's NEOX
};

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,          // RMS norm over each head of q and k
  kWholeProjection,  // RMS norm over all of q, and over all of k
};

enum class SharedExpert : uint8_t {
  kNone,
  kSigmoidGate  // its output is scaled by sigmoid(gate_vector . x)
};

// What a layer has before its feed-forward part.
enum class Mixer : uint8_t {
  kAttention,
  kDeltaNet,   // gated delta net: a state matrix per head, moved on token by token
  kShortConv,  // gated causal convolution over a few tokens
};

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

// Mixture of experts: softmax over all experts, the best n_used, ties to the lower id.
struct MoeParameters {
  int64_t n_experts = 0;  // 0: a dense model
  int64_t n_used = 0;
  int64_t n_ff = 0;  // width of one expert
  bool renormalize = false;  // chosen weights divided by max(their sum, kMinWeightSum)
  SharedExpert shared = SharedExpert::kNone;
  int64_t n_ff_shared = 0;
};

constexpr float kMinWeightSum = 6.1e-5f;  // the smallest normal binary16, as llama.cpp guards its sum

struct HyperParameters {
  std::string arch;
  int64_t n_layers = 0;
  int64_t n_embd = 0;
  int64_t n_vocab = 0;
  int64_t n_ctx_train = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim_k = 0;
  int64_t head_dim_v = 0;
  int64_t n_ff = 0;  // dense feed-forward width
  float rms_eps = 0.0f;

  RopeStyle rope_style = RopeStyle::kConsecutive;
  int64_t n_rot = 0;  // leading elements of a head that turn
  double rope_base = 10000.0;
  double rope_frequency_scale = 1.0;  // linear scaling: 1 / factor
  // Interleaved sections of positions (time, height, width, other). Text has its position in the first three and 0 in
  // the last, whose pairs do not turn. All 0: none.
  std::array<int64_t, 4> rope_sections = {};

  QkNorm qk_norm = QkNorm::kNone;
  bool gated_attention = false;  // q gives each head its query, then a gate: the head's output times sigmoid(gate)
  bool ffn_norm_after_attention = false;  // the feed-forward norm is the tensor post_attention_norm, not ffn_norm
  MoeParameters moe;

  std::vector<Mixer> mixers;  // [n_layers]; empty: attention everywhere
  RecurrentParameters recurrent;
  int64_t n_nextn_layers = 0;  // blocks after the last layer that predict a further token (MTP); not part of n_layers

  Mixer mixer(int64_t layer) const { return mixers.empty() ? Mixer::kAttention : mixers[static_cast<size_t>(layer)]; }
  bool is_recurrent() const { return recurrent.n_taps > 0; }

  bool is_moe() const { return moe.n_experts > 0; }
};

}  // namespace expertree
