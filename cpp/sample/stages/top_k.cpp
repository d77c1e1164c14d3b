// Keeps the k best tokens. Among equal logits at the boundary the lower ids stay.
#include "cpp/sample/stage.h"

namespace expertree {
namespace {

class TopK final : public SamplerStage {
 public:
  explicit TopK(const SamplerOptions& options) : k_(options.top_k) {}
  void filter(Candidates& candidates) const override { candidates.keep_best(k_); }

 private:
  int64_t k_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_top_k(const SamplerOptions& options, int64_t n_vocab) {
  return options.top_k == 0 || options.top_k >= n_vocab ? nullptr : std::make_unique<TopK>(options);
}

}  // namespace expertree
