// The tensors of one layer.
#pragma once

#include "cpp/experts/expert_index.h"
#include "cpp/model/arch/tensor_plan.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

// Of block `block` of the file, which is layer `layer` of the model that h describes.
void plan_layer(TensorPlan* plan, int64_t block, const HyperParameters& h, int64_t layer, ExpertIndex* experts,
                LayerWeights* w);

}  // namespace expertree
