// EcoSpec (arXiv 2607.12696): GAMMA times the node with the most probability per expert that its path adds to the
// buffer B of experts chosen so far; and its ablation with a fixed cost, the number of experts of the path.
//
// Open in the paper and chosen here: eps is 1 expert; B starts with the experts that the root is predicted to use; a
// path is made of draft nodes, the root's experts are no part of it. A child never goes before its parent: its path
// adds no fewer experts and its score is no higher, and ties go to the shallower node.
#include <algorithm>

#include "cpp/spec/marginal_experts.h"
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

class EcoSpec final : public Selector {
 public:
  EcoSpec(bool fixed_cost, int64_t n_nodes, double eps, bool start_with_root)
      : fixed_cost_(fixed_cost), n_nodes_(n_nodes), eps_(eps), start_with_root_(start_with_root) {}
  const char* name() const override { return fixed_cost_ ? "ecospec-static" : "ecospec"; }
  bool may_choose_again() const override { return true; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost) override {
    const auto n = static_cast<size_t>(tree.size());
    if (n == 0) return {};
    n_new_.assign(n, 0);
    // The buffer holds what other sequences use in the same pass.
    const auto is_new = [&](int32_t key) {
      return fixed_cost_ || !cost.others_use(key / sets.n_experts, key % sets.n_experts);
    };
    if (!sets.empty()) {
      experts_.reset(tree, sets, start_with_root_);
      for (size_t v = 0; v < n; ++v) n_new_[v] = std::ranges::count_if(experts_.own(static_cast<int32_t>(v)), is_new);
    }
    taken_.assign(n, 0);
    std::vector<int32_t> nodes;
    while (static_cast<int64_t>(nodes.size()) < std::min(n_nodes_, tree.size())) {
      const int32_t v = best_node(tree);
      nodes.push_back(v);
      taken_[static_cast<size_t>(v)] = 1;
      if (fixed_cost_ || sets.empty()) continue;
      experts_.add(v, [&](int32_t u, int32_t key) { n_new_[static_cast<size_t>(u)] -= is_new(key); });
    }
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

 private:
  // Of those not taken whose parents are; nodes deeper down cannot be better than those.
  int32_t best_node(const TokenTree& tree) {
    const auto n = static_cast<size_t>(tree.size());
    on_path_.resize(n);
    int32_t best = -1;
    double best_value = 0.0;
    for (size_t v = 0; v < n; ++v) {
      const int32_t parent = tree.parents[v];
      on_path_[v] = n_new_[v] + (parent < 0 ? 0 : on_path_[static_cast<size_t>(parent)]);
      if (taken_[v] || (parent >= 0 && !taken_[static_cast<size_t>(parent)])) continue;
      const double value = static_cast<double>(tree.scores[v]) / (static_cast<double>(on_path_[v]) + eps_);
      const bool wins = best < 0 || value > best_value ||
                        (value == best_value && tree.depths[v] < tree.depths[static_cast<size_t>(best)]);
      if (!wins) continue;
      best = static_cast<int32_t>(v);
      best_value = value;
    }
    return best;
  }

  bool fixed_cost_;
  int64_t n_nodes_;
  double eps_;
  bool start_with_root_;
  MarginalExperts experts_;
  std::vector<int64_t> n_new_;    // experts that a node itself would add
  std::vector<int64_t> on_path_;  // and with its ancestors
  std::vector<uint8_t> taken_;
};

std::unique_ptr<Selector> make(SelectorArgument& argument, bool fixed_cost) {
  const int64_t n_nodes = argument.take_integer(8, 0, 4096);
  const double eps = argument.take_option("eps", 1.0, 0.0, 1e6);
  // The fixed cost knows no buffer.
  const bool with_root = !fixed_cost && argument.take_option("start", {"root", "empty"}) == "root";
  return std::make_unique<EcoSpec>(fixed_cost, n_nodes, eps, with_root);
}

}  // namespace

std::unique_ptr<Selector> make_ecospec(SelectorArgument& argument) { return make(argument, false); }
std::unique_ptr<Selector> make_ecospec_static(SelectorArgument& argument) { return make(argument, true); }

}  // namespace expertree
