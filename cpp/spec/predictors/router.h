// Asks the target's own routers, each behind its layer's norm, about the drafter's hidden state for a token, which stands
// for the residual stream at every layer. A drafter without such states, or of another width: about the target's last
// hidden state at the last verified token, the same for the whole tree.
#pragma once

#include <memory>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/model/model.h"
#include "cpp/spec/head_inputs.h"
#include "cpp/spec/predictor.h"

namespace expertree {

class RouterPredictor final : public Predictor {
 public:
  // inputs: of the drafter, outlives the predictor; nullptr: it has none.
  RouterPredictor(std::shared_ptr<Model> target, HeadInputs* inputs);

  const char* name() const override { return "router"; }
  ExpertSets predict(int32_t root_token, const TokenTree& tree) override;
  void observe(std::span<const int32_t>, const ExpertSets&) override {}
  bool wants_hidden() const override { return inputs_ == nullptr; }
  void observe_hidden(std::span<const float> hidden) override;

 private:
  ExpertSets route(int64_t n_rows);

  std::shared_ptr<Model> target_;
  HeadInputs* inputs_;  // nullptr: last_ is asked about
  std::vector<float> last_;  // [n_embd]; empty: nothing observed yet
  std::vector<float> states_;  // [rows][n_embd]
  Activations normed_;  // [rows][n_embd]
  std::vector<float> scores_;  // [rows][n_experts]
};

// Throws kInvalidRequest without a target.
std::unique_ptr<Predictor> make_router_predictor(const std::shared_ptr<Model>& target, HeadInputs* inputs);

}  // namespace expertree
