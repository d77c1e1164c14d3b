// Predicts with a small trained linear map from what the EAGLE-3 head reads for each token.
#pragma once

#include <memory>
#include <string>

#include "cpp/backend/activations.h"
#include "cpp/model/draft_heads.h"
#include "cpp/model/model.h"
#include "cpp/spec/head_inputs.h"
#include "cpp/spec/predictor.h"

namespace expertree {

class HeadPredictor final : public Predictor {
 public:
  // inputs outlives the predictor.
  HeadPredictor(std::shared_ptr<Model> target, std::shared_ptr<const ExpertPredictorHead> head, HeadInputs* inputs);

  const char* name() const override { return "head"; }
  ExpertSets predict(int32_t root_token, const TokenTree& tree) override;
  void observe(std::span<const int32_t>, const ExpertSets&) override {}

 private:
  std::shared_ptr<Model> target_;
  std::shared_ptr<const ExpertPredictorHead> head_;
  HeadInputs* inputs_;
  Activations rows_;           // [1 + nodes][n_inputs]
  std::vector<float> scores_;  // [1 + nodes][n_layers * n_experts]
};

// argument: the predictor's file. Throws kInvalidRequest when inputs is nullptr: no drafter gives them.
std::unique_ptr<Predictor> make_head_predictor(const std::string& argument, const std::shared_ptr<Model>& target,
                                               HeadInputs* inputs);

}  // namespace expertree
