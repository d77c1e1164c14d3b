// Every token will use what the last verified token used.
#include <algorithm>

#include "cpp/spec/predictors/predictors.h"

namespace expertree {
namespace {

class Last final : public Predictor {
 public:
  explicit Last(const PredictorShape& shape) : shape_(shape) {}
  const char* name() const override { return "last"; }

  ExpertSets predict(int32_t, const TokenTree& tree) override {
    ExpertSets sets = {shape_.n_layers, shape_.n_experts, shape_.n_used, {}};
    if (last_.empty()) return sets;
    sets.ids.reserve(static_cast<size_t>(tree.size() + 1) * last_.size());
    for (int64_t row = 0; row <= tree.size(); ++row) sets.ids.insert(sets.ids.end(), last_.begin(), last_.end());
    return sets;
  }

  void observe(std::span<const int32_t> tokens, const ExpertSets& used) override {
    if (tokens.empty()) return;
    const auto n = static_cast<std::ptrdiff_t>(shape_.n_layers) * shape_.n_used;
    last_.assign(used.ids.begin() + static_cast<std::ptrdiff_t>(tokens.size() - 1) * n,
                 used.ids.begin() + static_cast<std::ptrdiff_t>(tokens.size()) * n);
  }

 private:
  PredictorShape shape_;
  std::vector<int32_t> last_;  // [n_layers][n_used]
};

}  // namespace

std::unique_ptr<Predictor> make_last_predictor(const PredictorShape& shape) { return std::make_unique<Last>(shape); }

}  // namespace expertree
