#include "cpp/spec/predictors/head.h"

#include "cpp/base/error.h"
#include "cpp/model/arch/draft_heads.h"
#include "cpp/spec/predictors/best_experts.h"

namespace expertree {

HeadPredictor::HeadPredictor(std::shared_ptr<Model> target, std::shared_ptr<const ExpertPredictorHead> head,
                             HeadInputs* inputs)
    : target_(std::move(target)), head_(std::move(head)), inputs_(inputs) {
  ET_CHECK(inputs_ != nullptr && inputs_->n_inputs() == head_->weight.k);
}

ExpertSets HeadPredictor::predict(int32_t root_token, const TokenTree& tree) {
  ExpertSets sets;
  if (!inputs_->read_inputs(root_token, tree, &rows_)) return sets;
  sets.n_layers = static_cast<int32_t>(head_->n_layers);
  sets.n_experts = static_cast<int32_t>(head_->n_experts);
  sets.n_used = static_cast<int32_t>(target_->hyperparameters().moe.n_used);
  const int64_t n_scores = head_->weight.rows;
  scores_.resize(static_cast<size_t>(rows_.rows() * n_scores));
  sets.ids.resize(static_cast<size_t>(rows_.rows() * sets.n_layers * sets.n_used));
  const auto lock = target_->lock_backend();
  const CpuBackend::Product product[] = {{head_->weight, scores_.data(), n_scores, head_->bias.data()}};
  target_->backend().matmul(rows_, product);
  std::vector<int32_t> order;
  for (int64_t i = 0; i < rows_.rows() * sets.n_layers; ++i) {
    best_experts(scores_.data() + i * sets.n_experts, sets.n_experts, sets.n_used, &order,
                 sets.ids.data() + i * sets.n_used);
  }
  return sets;
}

std::unique_ptr<Predictor> make_head_predictor(const std::string& argument, const std::shared_ptr<Model>& target,
                                               HeadInputs* inputs) {
  if (inputs == nullptr) {
    throw Error(
        ErrorCode::kInvalidRequest,
        "predictor head: it reads what an EAGLE-3 head reads, and the drafter has none; draft with eagle3:FILE, "
        "or use another predictor");
  }
  const auto head = target->parts().get<ExpertPredictorHead>(
      "head", argument, [&] { return load_expert_predictor(argument, *target, inputs->n_inputs()); },
      [](const ExpertPredictorHead& h) { return h.arena.size_bytes(); });
  return std::make_unique<HeadPredictor>(target, head, inputs);
}

}  // namespace expertree
