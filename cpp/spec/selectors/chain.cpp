// One path of at most K nodes: from the root down to the likeliest child each time (Leviathan et al. 2023, arXiv
// 2211.17192, with a chain that is cut from a tree).
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

class Chain final : public Selector {
 public:
  explicit Chain(int64_t n_nodes) : n_nodes_(n_nodes) {}
  const char* name() const override { return "chain"; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets&, const StepCost&) override {
    std::vector<int32_t> path;
    int32_t at = -1;
    while (static_cast<int64_t>(path.size()) < n_nodes_) {
      int32_t best = -1;
      for (int32_t v = at + 1; v < tree.size(); ++v) {
        const auto i = static_cast<size_t>(v);
        if (tree.parents[i] != at) continue;
        if (best < 0 || tree.scores[i] > tree.scores[static_cast<size_t>(best)]) best = v;
      }
      if (best < 0) break;
      path.push_back(best);
      at = best;
    }
    return path;
  }

 private:
  int64_t n_nodes_;
};

}  // namespace

std::unique_ptr<Selector> make_chain(SelectorArgument& argument) {
  return std::make_unique<Chain>(argument.take_integer(4, 0, 4096));
}

}  // namespace expertree
