// The admission rule of S2-MoE (arXiv 2608.15018), without its gating: in order of score, parents first, a node is
// admitted if score * T_AR / (new experts * T_exp + C_draft) >= 1, or skipped with everything below it.
//
// Taken here: T_AR is an iteration with one row; T_exp what an expert costs on average in it; C_draft the drafting
// time of one node. The root's experts are there from the start. Without predicted sets the price of a node is what
// one more row adds to an iteration.
#include <algorithm>

#include "cpp/spec/marginal_experts.h"
#include "cpp/spec/score_order.h"
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

class S2Moe final : public Selector {
 public:
  const char* name() const override { return "s2moe"; }
  bool may_choose_again() const override { return true; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost) override {
    const auto n = static_cast<size_t>(tree.size());
    if (n == 0) return {};
    const double plain = cost.plain_seconds();
    const double draft = cost.draft_seconds() / static_cast<double>(n);
    double per_expert = 0.0;
    const auto is_new = [&](int32_t key) { return !cost.others_use(key / sets.n_experts, key % sets.n_experts); };
    n_new_.assign(n, 0);
    if (!sets.empty()) {
      per_expert = cost.mean_expert_seconds(sets.n_layers, sets.n_used);
      experts_.reset(tree, sets, true);
      for (size_t v = 0; v < n; ++v) n_new_[v] = std::ranges::count_if(experts_.own(static_cast<int32_t>(v)), is_new);
    }
    std::vector<uint8_t> admitted(n, 0);
    std::vector<int32_t> nodes;
    for (const int32_t v : by_score(tree)) {
      const auto i = static_cast<size_t>(v);
      if (tree.parents[i] >= 0 && !admitted[static_cast<size_t>(tree.parents[i])]) continue;
      const auto n_rows = static_cast<int64_t>(nodes.size()) + 1;
      const double price = draft + (sets.empty() ? cost.iteration_seconds(n_rows + 1) - cost.iteration_seconds(n_rows)
                                                 : static_cast<double>(n_new_[i]) * per_expert);
      if (static_cast<double>(tree.scores[i]) * plain < price) continue;
      admitted[i] = 1;
      nodes.push_back(v);
      if (!sets.empty())
        experts_.add(v, [&](int32_t u, int32_t key) { n_new_[static_cast<size_t>(u)] -= is_new(key); });
    }
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

 private:
  MarginalExperts experts_;
  std::vector<int64_t> n_new_;  // experts that a node would add
};

}  // namespace

std::unique_ptr<Selector> make_s2moe(SelectorArgument&) { return std::make_unique<S2Moe>(); }

}  // namespace expertree
