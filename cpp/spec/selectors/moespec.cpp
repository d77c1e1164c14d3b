// MoE-Spec (arXiv 2602.16052), a lossy reference: the whole tree, run on the B experts of each layer that have the most
// router probability over its rows. A row that needs another one uses the next best of these instead, so the text is no
// longer the target's own. The choice of experts is the router's (cpp/model/expert_limit.cpp).
#include <numeric>

#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

class MoeSpec final : public Selector {
 public:
  explicit MoeSpec(int64_t most_experts) : most_experts_(most_experts) {}
  const char* name() const override { return "moespec"; }
  bool lossless() const override { return false; }
  int64_t most_experts() const override { return most_experts_; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets&, const StepCost&) override {
    std::vector<int32_t> nodes(static_cast<size_t>(tree.size()));
    std::iota(nodes.begin(), nodes.end(), 0);
    return nodes;
  }

 private:
  int64_t most_experts_;
};

}  // namespace

std::unique_ptr<Selector> make_moespec(SelectorArgument& argument) {
  return std::make_unique<MoeSpec>(argument.take_integer(16, 1, 1 << 16));
}

}  // namespace expertree
