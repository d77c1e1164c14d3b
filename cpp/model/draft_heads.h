// Trained parts that read a target model's hidden states: weights by role, as cpp/model/arch/draft_heads.h loads them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpp/base/memory.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

class Model;

// One decoder layer over [norm(embedding); norm(state)] (EAGLE-3, arXiv 2503.01840).
struct Eagle3Head {
  std::string path;
  HyperParameters h;  // of the head's layer
  std::vector<int32_t> tap_layers;  // of the target, whose inputs are the features
  bool norm_before_residual = false;  // the residual is the normalised state, not the state

  FloatVector feature_norm;  // [taps * target n_embd] before fc; empty: none
  WeightMatrix fc;           // [n_embd][taps * target n_embd]
  WeightMatrix token_embd;   // [at least the target's vocabulary][n_embd]; the target's own when the file has none
  FloatVector embedding_norm, state_norm, ffn_norm, output_norm;  // [n_embd]
  AttentionWeights attention;                                     // q, k, v take 2 * n_embd
  FeedForwardWeights feed_forward;
  FloatVector rope_factors;
  WeightMatrix output;  // [draft vocabulary][n_embd]; the target's own when the file has none
  std::vector<int32_t> target_ids;  // [draft vocabulary]
  PageBuffer arena;

  int64_t n_draft() const { return output.rows; }
};

// Head i guesses the token i + 2 places after the one whose last hidden state h it reads: the output rows applied to
// h + SiLU(W h + b) (Medusa, arXiv 2401.10774).
struct MedusaHeads {
  struct Head {
    WeightMatrix weight;  // [n_embd][n_embd]
    FloatVector bias;     // [n_embd]
  };
  std::string path;
  std::vector<Head> heads;
  WeightMatrix output;  // [draft vocabulary][n_embd]: the target's rows, copied side by side
  std::vector<int32_t> target_ids;  // [draft vocabulary]
  PageBuffer arena;
  PageBuffer output_rows;
};

// A further layer of the model, over input [norm(embedding); norm(state)], where the state is the normalised output of the
// model's last layer, or of this one (multi-token prediction, DeepSeek-V3, arXiv 2412.19437; "NextN").
struct NextnBlock {
  FloatVector embedding_norm, state_norm;  // [n_embd]
  WeightMatrix input;                      // [n_embd][2 * n_embd]
  WeightMatrix token_embd;                 // the target's own when the block has none
  std::shared_ptr<Model> layer;            // of this one layer, which is given its inputs
};

// Scores of every layer's experts for a token, linear in what the EAGLE-3 head reads for it.
struct ExpertPredictorHead {
  std::string path;
  int64_t n_layers = 0;
  int64_t n_experts = 0;
  WeightMatrix weight;  // [n_layers * n_experts][2 * n_embd of the EAGLE-3 head]
  FloatVector bias;     // [n_layers * n_experts]
  PageBuffer arena;
};

}  // namespace expertree
