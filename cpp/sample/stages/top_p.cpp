// Nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751): keeps the smallest set of best tokens whose probability,
// among the tokens still in the running and at temperature 1, reaches top_p.
#include <algorithm>

#include "cpp/kernels/canonical_math.h"
#include "cpp/sample/stage.h"

namespace expertree {
namespace {

class TopP final : public SamplerStage {
 public:
  explicit TopP(const SamplerOptions& options) : top_p_(options.top_p) {}

  // Sums are doubles, in the candidates' order for the total and best first for the running sum: both orders are
  // defined by the logits alone. Sorting goes only as deep as the running sum needs.
  void filter(Candidates& candidates) const override {
    double total = 0.0;
    for (int64_t i = 0; i < candidates.size; ++i) total += weight(candidates, i);
    const double wanted = static_cast<double>(top_p_) * total;
    for (int64_t n_sorted = 64;; n_sorted *= 8) {
      candidates.sort_best(n_sorted);
      const int64_t n = std::min(n_sorted, candidates.size);
      double sum = 0.0;
      for (int64_t i = 0; i < n; ++i) {
        sum += weight(candidates, i);
        if (sum < wanted) continue;
        candidates.size = i + 1;
        candidates.sorted = true;
        return;
      }
      if (n == candidates.size) return;  // rounding kept the sum below: keep all
    }
  }

 private:
  static double weight(const Candidates& candidates, int64_t i) {
    return static_cast<double>(canonical_exp(candidates.data[i].logit - candidates.max_logit));
  }

  float top_p_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_top_p(const SamplerOptions& options, int64_t) {
  return options.top_p >= 1.0f ? nullptr : std::make_unique<TopP>(options);
}

}  // namespace expertree
