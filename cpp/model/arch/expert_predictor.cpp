// The linear predictor of expert sets in GGUF, in expertree's own form (models/README.md).
#include "cpp/base/error.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/draft_file.h"
#include "cpp/model/arch/draft_heads.h"

namespace expertree {

std::shared_ptr<const ExpertPredictorHead> load_expert_predictor(const std::string& path, const Model& target,
                                                                 int64_t n_inputs) {
  const GgufReader reader(path);
  require_draft_architecture(reader, "expert-predictor");
  const ArchKeys keys(reader, "expert-predictor");
  const std::string features = keys.string_or("features", "eagle3");
  if (features != "eagle3") {
    throw Error(ErrorCode::kUnsupported, path + ": key '" + keys.full("features") + "' is '" + features.substr(0, 64) +
                                             "'; expertree runs 'eagle3'");
  }
  auto head = std::make_shared<ExpertPredictorHead>();
  head->path = path;
  head->n_layers = keys.require_int("moe_layer_count");
  head->n_experts = keys.require_int("expert_count");
  const int64_t n_experts = target.hyperparameters().moe.n_experts;
  if (head->n_layers != target.n_moe_layers() || head->n_experts != n_experts) {
    throw_wrong_target(reader, target,
                       std::to_string(head->n_layers) + " layers of " + std::to_string(head->n_experts) + " experts",
                       std::to_string(target.n_moe_layers()) + " of " + std::to_string(n_experts));
  }
  const int64_t n_scores = head->n_layers * head->n_experts;
  TensorPlan plan(reader);
  plan.matrix("predictor.weight", n_inputs, n_scores, &head->weight);
  plan.vector("predictor.bias", n_scores, &head->bias);
  plan.refuse_unused();
  load_draft_weights(plan, reader, &head->arena);
  return head;
}

}  // namespace expertree
