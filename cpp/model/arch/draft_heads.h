// Files of trained parts for a target model. Each loader throws kModelFormat or kUnsupported for a damaged file, and
// kInvalidRequest for a file that was trained for another target, naming what differs.
#pragma once

#include <memory>
#include <string>

#include "cpp/model/draft_heads.h"
#include "cpp/model/model.h"

namespace expertree {

// general.architecture "eagle3", in llama.cpp's convention, older and newer names.
std::shared_ptr<const Eagle3Head> load_eagle3(const std::string& path, const Model& target);
// "medusa" (models/README.md).
std::shared_ptr<const MedusaHeads> load_medusa(const std::string& path, const Model& target);
// "expert-predictor" (models/README.md). n_inputs: width of what it reads.
std::shared_ptr<const ExpertPredictorHead> load_expert_predictor(const std::string& path, const Model& target,
                                                                 int64_t n_inputs);

// The block of the target's own file that predicts one token further.
std::shared_ptr<const NextnBlock> load_nextn(const Model& target);

}  // namespace expertree
