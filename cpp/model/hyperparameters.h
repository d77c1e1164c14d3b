// What a model's metadata says, typed and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cpp/kernels/gated_unit.h"
#include "cpp/model/recurrent_parameters.h"

namespace expertree {

constexpr int64_t kDefaultContext = 4096;  // tokens, where nobody asks for more

enum class RopeStyle : uint8_t {
  kConsecutive,  // pairs (2i, 2i + 1); GGUF's NORM
  kSplitHalf     // pairs (i, i + n_rot / 2); GGUF's NEOX
};

// YaRN (Peng et al., arXiv 2309.00071): pairs that turn slowly are scaled, fast ones are not, with a ramp between.
struct YarnParameters {
  bool on = false;
  double n_ctx_original = 0.0;
  double beta_fast = 32.0;  // turns over the original context
  double beta_slow = 1.0;
};

// Which tensors divide each pair's frequency.
enum class RopeFactors : uint8_t {
  kOne,       // rope_freqs.weight where the file has it
  kLongShort  // rope_factors_long.weight for contexts beyond the original one, rope_factors_short.weight else
};

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,          // RMS norm over each head of q and k
  kPerHeadPlain,     // the same without a weight
  kWholeProjection,  // RMS norm over all of q, and over all of k
};

enum class Window : uint8_t {
  kNone,
  kSliding,  // position p sees p - n + 1 .. p
  kChunked   // position p sees the positions from floor(p / n) * n on
};

// Whether a file has a tensor: it must not, may, must.
enum class Presence : uint8_t { kNone, kOptional, kRequired };

// Attention over a compressed past (DeepSeek-AI, arXiv 2405.04434): what is kept of a position is one vector of kv_rank
// elements, from which keys and values of all heads follow, and one rotary key that the heads share.
struct LatentParameters {
  int64_t kv_rank = 0;  // 0: plain attention
  int64_t q_rank = 0;  // queries are compressed too; 0: they are not
  int64_t n_nope = 0;  // elements of a head's query and key that do not turn; n_rot more do
  int64_t head_dim_v = 0;
  bool split = false;  // tensors attn_k_b and attn_v_b; else attn_kv_b with both

  int64_t head_dim_q(int64_t n_rot) const { return n_nope + n_rot; }
};

// Queries at late positions are scaled by log(floor((position + offset) / length) + 1) * scale + 1.
struct QueryTemperature {
  double scale = 0.0;  // 0: none
  double length = 0.0;
  double offset = 0.0;
};

enum class SharedExpert : uint8_t {
  kNone,
  kPlain,
  kSigmoidGate  // its output is scaled by sigmoid(gate_vector . x)
};

enum class Gating : uint8_t {
  kSoftmax,
  kSigmoid,
  kSoftmaxOfChosen,  // the choice is by the raw scores, the weights are a softmax over the chosen
  kSigmoidOfChosen  // the same with a sigmoid
};

// What the router reads.
enum class RouterInput : uint8_t {
  kNormed,  // what the experts read
  kOwnNorm,  // the residual stream, normalised with a weight of its own
  kLayerInput  // the residual stream as the layer got it
};

// Mixture of experts. The best n_used by gating score (plus bias), ties to the lower id.
struct MoeParameters {
  int64_t n_experts = 0;  // 0: a dense model
  int64_t n_used = 0;
  int64_t n_ff = 0;  // width of one expert
  Gating gating = Gating::kSoftmax;
  Presence selection_bias = Presence::kNone;  // tensor exp_probs_b: moves the choice, not the weights
  // With groups: only experts of the best n_groups_used groups, by the sum of a group's two best scores.
  int64_t n_groups = 1;
  int64_t n_groups_used = 1;
  bool renormalize = false;  // chosen weights divided by max(their sum, kMinWeightSum)
  double weights_scale = 1.0;  // then times this
  bool biased = false;  // router and experts have biases
  bool weighs_input = false;  // the weight multiplies an expert's input, not its output
  RouterInput router_input = RouterInput::kNormed;
  SharedExpert shared = SharedExpert::kNone;
  int64_t n_ff_shared = 0;
  bool dense_beside = false;  // the layer's dense feed-forward part runs beside the experts
  double sum_scale = 1.0;  // of experts and the part beside them together
};

constexpr float kMinWeightSum = 0x1p-14f;  // the smallest normal binary16, as llama.cpp guards its sum

// What may differ from layer to layer.
struct LayerParameters {
  Mixer mixer = Mixer::kAttention;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // 0: the layer has no attention
  int64_t head_dim_k = 0;
  int64_t head_dim_v = 0;
  int64_t n_ff = 0;  // width of the dense feed-forward part
  bool has_experts = false;
  bool windowed = false;  // sees the window only, and turns as HyperParameters says of such layers
  bool has_rope = true;
  bool has_temperature = false;
};

struct HyperParameters {
  std::string arch;
  int64_t n_layers = 0;
  int64_t n_nextn_layers = 0;  // blocks after the last layer that predict a further token (MTP); not part of n_layers
  int64_t n_embd = 0;
  int64_t n_vocab = 0;
  int64_t n_ctx_train = 0;
  int64_t n_heads = 0;  // these six of the first layer
  int64_t n_kv_heads = 0;
  int64_t head_dim_k = 0;
  int64_t head_dim_v = 0;
  int64_t n_ff = 0;  // dense feed-forward width; 0: the file does not say
  float rms_eps = 0.0f;
  std::vector<LayerParameters> layers;  // [n_layers]
  std::vector<LayerParameters> nextn_layers;  // [n_nextn_layers]

  RopeStyle rope_style = RopeStyle::kConsecutive;
  int64_t n_rot = 0;  // leading elements of a head that turn; latent attention: all of the rotary key
  double rope_base = 10000.0;
  double rope_frequency_scale = 1.0;  // linear scaling: 1 / factor
  // The same of windowed layers.
  int64_t n_rot_windowed = 0;
  double rope_base_windowed = 10000.0;
  double rope_frequency_scale_windowed = 1.0;
  // Interleaved sections of positions (time, height, width, other). Text has its position in the first three and 0 in
  // the last, whose pairs do not turn. All 0: none.
  std::array<int64_t, 4> rope_sections = {};
  double rope_magnitude = 1.0;  // of sin and cos, beside what YaRN multiplies them with
  YarnParameters yarn;
  RopeFactors rope_factors = RopeFactors::kOne;
  bool rope_factors_windowed = true;  // they hold for windowed layers, too

  QkNorm qk_norm = QkNorm::kNone;
  Presence qk_norm_weights = Presence::kRequired;  // none of them: no norm
  bool qk_norm_after_rope = false;
  bool gated_attention = false;  // attn_q has each head's query and then its gate: the output times sigmoid(gate)
  bool normalize_values = false;  // RMS norm without a weight over each head of v
  bool values_may_be_keys = false;  // without attn_v the values are the key projection
  Presence attention_sinks = Presence::kNone;
  bool ignores_output_bias = false;  // files may have attn_output.bias, which is not added
  double qkv_limit = 0.0;  // queries, keys and values are clamped to +- this as they are projected; 0: they are not
  double attention_scale = 0.0;  // of scores; 0: 1 / sqrt(head_dim_k)
  double attention_softcap = 0.0;  // 0: none
  double attention_output_scale = 1.0;
  Window window = Window::kNone;
  int64_t n_window = 0;
  QueryTemperature temperature;
  LatentParameters latent;

  RecurrentParameters recurrent;

  bool layer_norm = false;  // norms of the residual stream take the mean off first; rms_eps is theirs
  bool norm_biases = false;  // norms of the residual stream, and the output matrix, have biases (any output may)
  const char* output_norm = "output_norm";  // tensor of the norm behind the last layer
  const char* ffn_norm = "ffn_norm";  // tensor of the norm before the feed-forward part
  const char* post_attention_norm = nullptr;  // tensor of the norm behind attention; nullptr: none
  const char* post_feed_forward_norm = nullptr;
  GatedUnit unit = GatedUnit::kSwiGlu;
  double embedding_scale = 1.0;
  double residual_scale = 1.0;  // of what attention and feed-forward part add
  double logit_scale = 1.0;
  double logit_softcap = 0.0;  // 0: none
  bool layer_scales = false;  // tensor layer_output_scale, where the file has it
  MoeParameters moe;

  bool is_moe() const { return moe.n_experts > 0; }
  const LayerParameters& layer(int64_t i) const { return layers[static_cast<size_t>(i)]; }
  bool is_recurrent() const { return recurrent.n_taps > 0; }
  bool is_latent() const { return latent.kv_rank > 0; }
};

}  // namespace expertree
