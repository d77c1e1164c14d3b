// The best of all subtrees that hold the root, by the same measure as `residency`: expected tokens per second. For
// tests: the number of subtrees doubles with every node.
#include "cpp/base/error.h"
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

constexpr int64_t kMaxNodes = 16;

class Exhaustive final : public Selector {
 public:
  const char* name() const override { return "exhaustive"; }
  bool may_choose_again() const override { return true; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost) override {
    if (tree.size() > kMaxNodes) {
      throw Error(ErrorCode::kInvalidRequest, "selector 'exhaustive' was given a tree of " +
                                                  std::to_string(tree.size()) + " nodes and takes up to " +
                                                  std::to_string(kMaxNodes) + "; draft fewer, or use residency");
    }
    std::vector<int32_t> best;
    double best_rate = 0.0;
    std::vector<int32_t> nodes;
    for (uint32_t subset = 0; subset < (1u << tree.size()); ++subset) {
      nodes.clear();
      double tokens = 1.0 + cost.other_tokens();
      bool closed = true;
      for (int32_t v = 0; v < tree.size() && closed; ++v) {
        if ((subset >> v & 1) == 0) continue;
        const int32_t parent = tree.parents[static_cast<size_t>(v)];
        closed = parent < 0 || (subset >> parent & 1) != 0;
        tokens += static_cast<double>(tree.scores[static_cast<size_t>(v)]);
        nodes.push_back(v);
      }
      if (!closed) continue;
      const double rate = tokens / (step_seconds(cost, sets, nodes) + cost.draft_seconds());
      if (rate > best_rate) {
        best_rate = rate;
        best = nodes;
      }
    }
    return best;
  }
};

}  // namespace

std::unique_ptr<Selector> make_exhaustive(SelectorArgument&) { return std::make_unique<Exhaustive>(); }

}  // namespace expertree
