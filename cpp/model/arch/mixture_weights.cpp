// Tensors of a mixture of experts. The experts themselves are indexed, not loaded.
#include <cmath>

#include "cpp/base/error.h"
#include "cpp/model/arch/layer_weights.h"

namespace expertree {
namespace {

using Projection = ExpertLayer::Projection;

// Slices of a tensor [k, rows of all parts, n_experts]: of each expert the rows of part `part` of n_parts.
Projection cut_experts(const TensorPlan& plan, const GgufTensor& tensor, int64_t k, int64_t rows, int64_t n_experts,
                       int64_t part, int64_t n_parts) {
  Projection projection{static_cast<DType>(tensor.gguf_type), rows, k, {}, {}};
  const uint64_t size = tensor.size_bytes / static_cast<uint64_t>(n_experts * n_parts);
  for (int64_t e = 0; e < n_experts; ++e) {
    projection.experts.push_back({plan.index_of(&tensor), size * static_cast<uint64_t>(e * n_parts + part), size});
  }
  return projection;
}

// One merged tensor [k, rows, n_experts], or in old files one tensor [k, rows] per expert.
Projection plan_projection(TensorPlan* plan, const std::string& block, const char* name, int64_t k, int64_t rows,
                           int64_t n_experts) {
  const std::string stem = block + name;
  const GgufTensor* merged = plan->take(stem + "_exps.weight");
  if (merged != nullptr) {
    plan->check(*merged, {k, rows, n_experts});
    Projection projection = cut_experts(*plan, *merged, k, rows, n_experts, 0, 1);
    projection.scales = plan->scales(stem + "_exps", n_experts);
    return projection;
  }
  if (plan->take(stem + ".0.weight") == nullptr) plan->require(stem + "_exps.weight");  // says what is missing
  Projection projection{DType::kF32, rows, k, {}, {}};
  for (int64_t e = 0; e < n_experts; ++e) {
    const GgufTensor& tensor = plan->require(stem + "." + std::to_string(e) + ".weight");
    plan->check(tensor, {k, rows});
    const auto dtype = static_cast<DType>(tensor.gguf_type);
    if (e > 0 && dtype != projection.dtype) {
      throw Error(ErrorCode::kUnsupported, "tensor '" + tensor.name + "' is stored as " +
                                               gguf_type_name(tensor.gguf_type) + " and that of expert 0 as " +
                                               dtype_info(projection.dtype).name +
                                               "; all experts of a layer must have one format per projection");
    }
    projection.dtype = dtype;
    projection.experts.push_back({plan->index_of(&tensor), 0, tensor.size_bytes});
    const std::vector<float> scale = plan->scales(stem + "." + std::to_string(e), 1);
    if (scale.empty()) continue;
    projection.scales.resize(static_cast<size_t>(n_experts), 1.0f);
    projection.scales[static_cast<size_t>(e)] = scale[0];
  }
  return projection;
}

// Gate and up projection: two tensors, or one that has each expert's gate and then its up rows.
void plan_gate_and_up(TensorPlan* plan, const std::string& block, int64_t n_embd, const MoeParameters& moe,
                      ExpertLayer* experts) {
  const GgufTensor* both = plan->take(block + "ffn_gate_up_exps.weight");
  if (both == nullptr) {
    experts->projections[kGate] = plan_projection(plan, block, "ffn_gate", n_embd, moe.n_ff, moe.n_experts);
    experts->projections[kUp] = plan_projection(plan, block, "ffn_up", n_embd, moe.n_ff, moe.n_experts);
    return;
  }
  plan->check(*both, {n_embd, 2 * moe.n_ff, moe.n_experts});
  experts->projections[kGate] = cut_experts(*plan, *both, n_embd, moe.n_ff, moe.n_experts, 0, 2);
  experts->projections[kUp] = cut_experts(*plan, *both, n_embd, moe.n_ff, moe.n_experts, 1, 2);
  const std::vector<float> scales = plan->scales(block + "ffn_gate_up_exps", moe.n_experts);
  for (const ExpertProjection projection : {kGate, kUp}) experts->projections[projection].scales = scales;
}

}  // namespace

void plan_feed_forward(TensorPlan* plan, const std::string& block, const char* suffix, int64_t n_embd, int64_t n_ff,
                       FeedForwardWeights* w) {
  plan->matrix(block + "ffn_gate" + suffix + ".weight", n_embd, n_ff, &w->gate);
  plan->matrix(block + "ffn_up" + suffix + ".weight", n_embd, n_ff, &w->up);
  plan->matrix(block + "ffn_down" + suffix + ".weight", n_ff, n_embd, &w->down);
  plan->optional_vector(block + "ffn_gate" + suffix + ".bias", n_ff, &w->gate_bias);
  plan->optional_vector(block + "ffn_up" + suffix + ".bias", n_ff, &w->up_bias);
  plan->optional_vector(block + "ffn_down" + suffix + ".bias", n_embd, &w->down_bias);
}

void plan_mixture(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                  ExpertIndex* index, MoeWeights* w) {
  const MoeParameters& moe = h.moe;
  const int64_t n = moe.n_experts;
  plan->matrix(block + "ffn_gate_inp.weight", h.n_embd, n, &w->router);
  plan->vector_if(moe.selection_bias, block + "exp_probs_b.bias", n, &w->selection_bias);
  ExpertLayer experts;
  experts.layer = static_cast<int32_t>(layer);
  plan_gate_and_up(plan, block, h.n_embd, moe, &experts);
  experts.projections[kDown] = plan_projection(plan, block, "ffn_down", moe.n_ff, h.n_embd, n);
  w->moe_layer = std::ssize(*index);
  index->push_back(std::move(experts));
  if (moe.biased) {
    plan->vector(block + "ffn_gate_inp.bias", n, &w->router_bias);
    plan->floats(block + "ffn_gate_exps.bias", {moe.n_ff, n}, &w->gate_bias);
    plan->floats(block + "ffn_up_exps.bias", {moe.n_ff, n}, &w->up_bias);
    plan->floats(block + "ffn_down_exps.bias", {h.n_embd, n}, &w->down_bias);
  }
  if (moe.router_input == RouterInput::kOwnNorm) {
    plan->vector(block + "ffn_gate_inp.scale", h.n_embd, &w->router_norm);
    plan->vector(block + "pre_ffw_norm_2.weight", h.n_embd, &w->norm);
    plan->vector(block + "post_ffw_norm_1.weight", h.n_embd, &w->beside_norm);
    plan->vector(block + "post_ffw_norm_2.weight", h.n_embd, &w->sum_norm);
  }
  if (moe.shared == SharedExpert::kNone) return;
  plan_feed_forward(plan, block, "_shexp", h.n_embd, moe.n_ff_shared, &w->shared);
  if (moe.shared == SharedExpert::kSigmoidGate) {
    plan->matrix(block + "ffn_gate_inp_shexp.weight", h.n_embd, 1, &w->shared_gate);
  }
}

void finish_mixture(const HyperParameters& h, MoeWeights* w) {
  // The router's own norm is followed by 1 / sqrt(n_embd).
  const float scale = 1.0f / std::sqrt(static_cast<float>(h.n_embd));
  for (float& x : w->router_norm) x *= scale;
}

}  // namespace expertree
