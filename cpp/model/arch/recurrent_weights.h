// Tensors of recurrent layers, and how they are laid out for use.
#pragma once

#include <string>

#include "cpp/model/arch/tensor_plan.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

void plan_recurrent(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                    LayerWeights* w);
// Once the weights are read: splits projections that files may store as one, and turns the convolution to one row per
// tap.
void finish_recurrent(const HyperParameters& h, int64_t layer, LayerWeights* w);

}  // namespace expertree
