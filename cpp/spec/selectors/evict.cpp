// EVICT (arXiv 2605.00342): the k best nodes, k maximising expected tokens per measured second of an iteration of that
// length. Whether the paper counts the bonus token is open: with it (1 + sum of scores) k = 0 competes too; without
// it k starts at 1.
#include "cpp/spec/score_order.h"
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

class Evict final : public Selector {
 public:
  explicit Evict(bool counts_bonus) : counts_bonus_(counts_bonus) {}
  const char* name() const override { return "evict"; }
  bool may_choose_again() const override { return true; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets&, const StepCost& cost) override {
    std::vector<int32_t> order = by_score(tree);
    const double draft = cost.draft_seconds();
    double tokens = (counts_bonus_ ? 1.0 : 0.0) + cost.other_tokens();
    double best_rate = counts_bonus_ ? tokens / (cost.iteration_seconds(1) + draft) : -1.0;
    size_t best = 0;
    for (size_t k = 1; k <= order.size(); ++k) {
      tokens += static_cast<double>(tree.scores[static_cast<size_t>(order[k - 1])]);
      const double rate = tokens / (cost.iteration_seconds(static_cast<int64_t>(k) + 1) + draft);
      if (rate > best_rate) {
        best_rate = rate;
        best = k;
      }
    }
    return best_nodes(std::move(order), best);
  }

 private:
  bool counts_bonus_;
};

}  // namespace

std::unique_ptr<Selector> make_evict(SelectorArgument& argument) {
  return std::make_unique<Evict>(argument.take_option("bonus", {"counted", "ignored"}) == "counted");
}

}  // namespace expertree
