// Logits become (logit - largest) / temperature: at most 0, so nothing overflows upwards at any temperature, and the
// spacing of floats is finest where the choice is made. Greedy: shifted only, and no noise.
#include "cpp/sample/stage.h"

namespace expertree {
namespace {

class Temperature final : public SamplerStage {
 public:
  explicit Temperature(const SamplerOptions& options)
      : greedy_(options.temperature < kGreedyTemperature), divisor_(greedy_ ? 1.0f : options.temperature) {}

  void filter(Candidates& candidates) const override {
    for (int64_t i = 0; i < candidates.size; ++i) {
      Candidate& candidate = candidates.data[i];
      candidate.logit = (candidate.logit - candidates.max_logit) / divisor_;
    }
    candidates.max_logit = 0.0f;
    candidates.noise = !greedy_;
  }

 private:
  bool greedy_;
  float divisor_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_temperature(const SamplerOptions& options, int64_t) {
  return std::make_unique<Temperature>(options);
}

}  // namespace expertree
