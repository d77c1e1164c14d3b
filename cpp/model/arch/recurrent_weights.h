// Tensors of recurrent layers, and how they are laid out for use.
#pragma once

#include <string>

#include "cpp/model/arch/tensor_plan.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

void plan_delta_net(TensorPlan* plan, const std::string& block, const HyperParameters& h, DeltaNetWeights* w);
void plan_short_conv(TensorPlan* plan, const std::string& block, const HyperParameters& h, ShortConvWeights* w);

// Once the weights are read: splits projections that files may store as one, and turns the convolution to one row per
// tap. Nothing to do for a layer with attention.
void finish_recurrent_layer(const HyperParameters& h, int64_t layer, LayerWeights* w);

}  // namespace expertree
