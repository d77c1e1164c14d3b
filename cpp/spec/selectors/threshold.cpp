// The fewest nodes, by score, whose scores sum to the share RHO of the whole tree's.
#include "cpp/spec/score_order.h"
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

class Threshold final : public Selector {
 public:
  explicit Threshold(double share) : share_(share) {}
  const char* name() const override { return "threshold"; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets&, const StepCost&) override {
    std::vector<int32_t> order = by_score(tree);
    std::vector<double> sums;  // of the first 1, 2, .. nodes
    double sum = 0.0;
    for (const int32_t v : order) sums.push_back(sum += static_cast<double>(tree.scores[static_cast<size_t>(v)]));
    size_t n = 0;
    while (n < order.size() && (n == 0 || sums[n - 1] < share_ * sum)) ++n;
    return best_nodes(std::move(order), n);
  }

 private:
  double share_;
};

}  // namespace

std::unique_ptr<Selector> make_threshold(SelectorArgument& argument) {
  return std::make_unique<Threshold>(argument.take_number(0.8, 0.0, 1.0));
}

}  // namespace expertree
