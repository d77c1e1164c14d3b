#include "cpp/spec/predictors/router.h"

#include <algorithm>
#include <utility>

#include "cpp/base/error.h"
#include "cpp/spec/predictors/best_experts.h"

namespace expertree {

RouterPredictor::RouterPredictor(std::shared_ptr<Model> target, HeadInputs* inputs)
    : target_(std::move(target)),
      inputs_(inputs != nullptr && inputs->n_state() == target_->hyperparameters().n_embd ? inputs : nullptr) {}

ExpertSets RouterPredictor::predict(int32_t root_token, const TokenTree& tree) {
  const int64_t n_rows = tree.size() + 1;
  if (inputs_ != nullptr) {
    if (!inputs_->read_states(root_token, tree, &states_)) return {};
    return route(n_rows);
  }
  if (last_.empty()) return {};
  states_ = last_;
  ExpertSets sets = route(1);
  const auto of_row = std::ssize(sets.ids);
  sets.ids.resize(static_cast<size_t>(n_rows * of_row));
  for (int64_t row = 1; row < n_rows; ++row) {
    std::copy_n(sets.ids.begin(), of_row, sets.ids.begin() + row * of_row);
  }
  return sets;
}

// The experts of states_ [n_rows][n_embd] in every layer.
ExpertSets RouterPredictor::route(int64_t n_rows) {
  const HyperParameters& h = target_->hyperparameters();
  ExpertSets sets{static_cast<int32_t>(target_->n_moe_layers()),
                  static_cast<int32_t>(h.moe.n_experts),
                  static_cast<int32_t>(h.moe.n_used),
                  {}};
  sets.ids.resize(static_cast<size_t>(n_rows * sets.n_layers * sets.n_used));
  scores_.resize(static_cast<size_t>(n_rows * sets.n_experts));
  std::vector<int32_t> order;
  const auto lock = target_->lock_backend();
  for (const LayerWeights& layer : target_->weights().layers) {
    if (layer.moe.moe_layer < 0) continue;
    normed_.reset(n_rows, h.n_embd);
    target_->backend().rms_norm(states_.data(), layer.ffn_norm.data(), h.rms_eps, &normed_);
    const CpuBackend::Product router[] = {{layer.moe.router, scores_.data(), sets.n_experts}};
    target_->backend().matmul(normed_, router);
    for (int64_t row = 0; row < n_rows; ++row) {
      best_experts(scores_.data() + row * sets.n_experts, sets.n_experts, sets.n_used, &order,
                   sets.ids.data() + (row * sets.n_layers + layer.moe.moe_layer) * sets.n_used);
    }
  }
  return sets;
}

// The routers' own norms follow, so that only the last norm's weights are in the way of the residual stream.
void RouterPredictor::observe_hidden(std::span<const float> hidden) {
  const FloatVector& norm = target_->weights().output_norm;
  last_.resize(hidden.size());
  for (size_t i = 0; i < hidden.size(); ++i) last_[i] = norm[i] != 0.0f ? hidden[i] / norm[i] : 0.0f;
}

std::unique_ptr<Predictor> make_router_predictor(const std::shared_ptr<Model>& target, HeadInputs* inputs) {
  if (target == nullptr) {
    throw Error(ErrorCode::kInvalidRequest,
                "predictor router: it asks the routers of the target, and there is none; use another predictor");
  }
  return std::make_unique<RouterPredictor>(target, inputs);
}

}  // namespace expertree
