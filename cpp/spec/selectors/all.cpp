// The whole tree, as EAGLE-3 verifies it (Li et al. 2025, arXiv 2503.01840).
#include <numeric>

#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

class All final : public Selector {
 public:
  const char* name() const override { return "all"; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets&, const StepCost&) override {
    std::vector<int32_t> nodes(static_cast<size_t>(tree.size()));
    std::iota(nodes.begin(), nodes.end(), 0);
    return nodes;
  }
};

}  // namespace

std::unique_ptr<Selector> make_all(SelectorArgument&) { return std::make_unique<All>(); }

}  // namespace expertree
