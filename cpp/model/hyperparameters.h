// What a model's metadata says, typed and checked.
#pragma once

#include <cstdint>
#include <string>

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

// Mixture of experts: softmax over all experts, the best n_used, ties to the lower id.
struct MoeParameters {
  int64_t n_experts = 0;  // 0: a dense model
  int64_t n_used = 0;
  int64_t n_ff = 0;         // width of one expert
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

  QkNorm qk_norm = QkNorm::kNone;
  MoeParameters moe;

  bool is_moe() const { return moe.n_experts > 0; }
};

}  // namespace expertree
