// The tensors of one layer's parts: plan_ before loading, finish_ for what is made of them afterwards.
#pragma once

#include <string>

#include "cpp/model/arch/tensor_plan.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

// All of a layer. block: the number of its tensors in the file, "blk.3."; layer: which one it is of h's.
void plan_layer(TensorPlan* plan, int64_t block, const HyperParameters& h, int64_t layer, ExpertIndex* experts,
                LayerWeights* w);
void finish_layer(const HyperParameters& h, int64_t layer, LayerWeights* w, std::vector<FloatVector>* computed);

// block: "blk.3."; layer: 3.
void plan_attention(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                    AttentionWeights* w);
void finish_attention(const HyperParameters& h, int64_t layer, AttentionWeights* w);

void plan_latent_attention(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                           AttentionWeights* w);
// computed: where matrices go that the file has in another form.
void finish_latent_attention(const HyperParameters& h, int64_t layer, AttentionWeights* w,
                             std::vector<FloatVector>* computed);

// suffix: "", or "_shexp" for shared experts.
void plan_feed_forward(TensorPlan* plan, const std::string& block, const char* suffix, int64_t n_embd, int64_t n_ff,
                       FeedForwardWeights* w);

// Experts, router and what runs beside them, but for a dense part. Appends to `index`.
void plan_mixture(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                  ExpertIndex* index, MoeWeights* w);
void finish_mixture(const HyperParameters& h, MoeWeights* w);

}  // namespace expertree
