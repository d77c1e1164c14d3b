// Plug point: which experts will a draft token need.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

class Predictor {
 public:
  virtual ~Predictor() = default;
  virtual const char* name() const = 0;

  // Sets of the root and of every node; empty when nothing is known yet.
  virtual ExpertSets predict(int32_t root_token, const TokenTree& tree) = 0;
  // The experts that n committed tokens were found to use: ids [n][n_layers][n_used].
  virtual void observe(std::span<const int32_t> tokens, const ExpertSets& used) = 0;

  // Whether observe_hidden() is to be called, which makes the target record that state.
  virtual bool wants_hidden() const { return false; }
  // The normalised output [n_embd] of the target's last layer at the last committed token.
  virtual void observe_hidden(std::span<const float>) {}
};

struct PredictorShape {
  int32_t n_layers = 0;  // MoE layers
  int32_t n_experts = 0;
  int32_t n_used = 0;
};

class HeadInputs;
class Model;

struct PredictorContext {
  PredictorContext(PredictorShape of, std::shared_ptr<Model> model, HeadInputs* of_drafter)
      : shape(of), target(std::move(model)), inputs(of_drafter) {}

  PredictorShape shape;
  std::shared_ptr<Model> target;  // for those that read a file made for it, or its weights
  HeadInputs* inputs;             // the drafter's head_inputs(), which outlives the predictor; may be nullptr
};

// spec: NAME or NAME:ARGUMENT. Throws kInvalidRequest, naming what there is.
std::unique_ptr<Predictor> make_predictor(const std::string& spec, const PredictorContext& context);
std::unique_ptr<Predictor> make_predictor(const std::string& spec, const PredictorShape& shape);
struct PredictorInfo {
  const char* name;
  const char* argument;  // "" or what it means
  const char* summary;
};
std::span<const PredictorInfo> predictor_infos();

}  // namespace expertree
