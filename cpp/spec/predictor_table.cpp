#include <iterator>

#include "cpp/base/error.h"
#include "cpp/spec/predictor.h"
#include "cpp/spec/predictors/head.h"
#include "cpp/spec/predictors/predictors.h"
#include "cpp/spec/predictors/router.h"

namespace expertree {
namespace {

using MakePredictor = std::unique_ptr<Predictor> (*)(const std::string& argument, const PredictorContext&);

template <std::unique_ptr<Predictor> (*make)(const PredictorShape&)>
std::unique_ptr<Predictor> from_shape(const std::string&, const PredictorContext& context) {
  return make(context.shape);
}

std::unique_ptr<Predictor> make_head(const std::string& argument, const PredictorContext& context) {
  return make_head_predictor(argument, context.target, context.inputs);
}

std::unique_ptr<Predictor> make_router(const std::string&, const PredictorContext& context) {
  return make_router_predictor(context.target, context.inputs);
}

// The same order in both.
constexpr PredictorInfo kPredictorInfos[] = {
    {"last", "", "what the last verified token used"},
    {"token-table", "", "what the same token used before, else as last"},
    {"router", "",
     "the model's own routers, asked about the EAGLE-3 head's hidden state, else about the last known one"},
    {"head", "FILE", "a trained linear map from what the EAGLE-3 head reads; needs that drafter"},
};
constexpr MakePredictor kPredictorMakers[] = {
    &from_shape<make_last_predictor>,
    &from_shape<make_token_table_predictor>,
    &make_router,
    &make_head,
};
static_assert(std::size(kPredictorInfos) == std::size(kPredictorMakers));

}  // namespace

std::unique_ptr<Predictor> make_predictor(const std::string& spec, const PredictorContext& context) {
  const size_t colon = spec.find(':');
  const std::string name = spec.substr(0, colon);
  const std::string argument = colon == std::string::npos ? "" : spec.substr(colon + 1);
  std::string known;
  for (size_t i = 0; i < std::size(kPredictorInfos); ++i) {
    const bool takes_argument = *kPredictorInfos[i].argument != '\0';
    known += (known.empty() ? "" : ", ") + std::string(kPredictorInfos[i].name);
    if (takes_argument) known += ":" + std::string(kPredictorInfos[i].argument);
    if (name != kPredictorInfos[i].name) continue;
    if (takes_argument == argument.empty()) {
      throw Error(ErrorCode::kInvalidRequest,
                  "predictor '" + spec.substr(0, 64) + "': " + name +
                      (takes_argument ? " needs an argument, " + name + ":" + kPredictorInfos[i].argument
                                      : " takes no argument"));
    }
    return kPredictorMakers[i](argument, context);
  }
  throw Error(ErrorCode::kInvalidRequest, "unknown predictor '" + spec.substr(0, 32) + "'; known: " + known);
}

std::unique_ptr<Predictor> make_predictor(const std::string& spec, const PredictorShape& shape) {
  return make_predictor(spec, PredictorContext{shape, nullptr, nullptr});
}

std::span<const PredictorInfo> predictor_infos() { return kPredictorInfos; }

}  // namespace expertree
