// Adds a number to the logits of chosen tokens; -inf bans a token.
#include <algorithm>
#include <limits>

#include "cpp/sample/stage.h"

namespace expertree {
namespace {

class LogitBias final : public SamplerStage {
 public:
  explicit LogitBias(const SamplerOptions& options) : bias_(options.logit_bias) {}

  bool adjusts() const override { return true; }

  void adjust(float* logits, const TokenHistory&) override {
    constexpr float kLargest = std::numeric_limits<float>::max();
    for (const auto& [token, bias] : bias_) {
      logits[token] = std::min(logits[token] + bias, kLargest);  // huge + huge is not to become +inf
    }
  }

 private:
  std::vector<std::pair<int32_t, float>> bias_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_logit_bias(const SamplerOptions& options, int64_t) {
  return options.logit_bias.empty() ? nullptr : std::make_unique<LogitBias>(options);
}

}  // namespace expertree
