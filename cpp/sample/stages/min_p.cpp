// Keeps tokens whose probability is at least min_p times that of the best one (Nguyen et al., arXiv 2407.01082), by
// comparing logits: log p - log p_best >= log min_p.
#include "cpp/kernels/canonical_math.h"
#include "cpp/sample/stage.h"

namespace expertree {
namespace {

class MinP final : public SamplerStage {
 public:
  explicit MinP(const SamplerOptions& options) : log_min_p_(canonical_log(options.min_p)) {}

  void filter(Candidates& candidates) const override {
    int64_t n = 0;
    for (int64_t i = 0; i < candidates.size; ++i) {
      if (candidates.data[i].logit - candidates.max_logit >= log_min_p_) candidates.data[n++] = candidates.data[i];
    }
    candidates.size = n;
  }

 private:
  float log_min_p_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_min_p(const SamplerOptions& options, int64_t) {
  return options.min_p <= 0.0f ? nullptr : std::make_unique<MinP>(options);
}

}  // namespace expertree
