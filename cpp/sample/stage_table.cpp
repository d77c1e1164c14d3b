#include "cpp/sample/stage.h"

namespace expertree {

std::unique_ptr<SamplerStage> make_penalties(const SamplerOptions&, int64_t);
std::unique_ptr<SamplerStage> make_logit_bias(const SamplerOptions&, int64_t);
std::unique_ptr<SamplerStage> make_top_k(const SamplerOptions&, int64_t);
std::unique_ptr<SamplerStage> make_top_p(const SamplerOptions&, int64_t);
std::unique_ptr<SamplerStage> make_min_p(const SamplerOptions&, int64_t);
std::unique_ptr<SamplerStage> make_temperature(const SamplerOptions&, int64_t);

namespace {

// llama.cpp's default order for the stages that exist, but for one thing: llama.cpp adds the bias before the penalties,
// here it is added after them, so that a repeat penalty does not scale a bias. Temperature is last: top-p and min-p
// look at probabilities at temperature 1.
// clang-format off
constexpr StageRow kStages[] = {
    {"penalties", make_penalties},
    {"logit_bias", make_logit_bias},
    {"top_k", make_top_k},
    {"top_p", make_top_p},
    {"min_p", make_min_p},
    {"temperature", make_temperature},
};
// clang-format on

}  // namespace

std::span<const StageRow> sampler_stages() { return kStages; }

}  // namespace expertree
