// The expert that is worth least goes, as expertree.CachePolicy objects say; among equals the one not used for longest.
#include <tuple>
#include <vector>

#include "cpp/experts/cache_policy.h"
#include "cpp/experts/expert_values.h"

namespace expertree {
namespace {

class Values final : public CachePolicy {
 public:
  explicit Values(const PolicyContext& context)
      : values_(context.values), last_use_(static_cast<size_t>(context.n_layers * context.n_experts), 0) {}

  void use(ExpertKey key, int64_t) override { last_use_[static_cast<size_t>(key)] = ++n_uses_; }

  size_t victim(std::span<const ExpertKey> keys) override {
    const auto values = values_->get();
    const auto worth = [&](ExpertKey key) {
      const auto i = static_cast<size_t>(key);
      return std::tuple((*values)[i], last_use_[i]);
    };
    size_t least = 0;
    for (size_t i = 1; i < keys.size(); ++i) {
      if (worth(keys[i]) < worth(keys[least])) least = i;
    }
    return least;
  }

  bool may_go_for_guess(ExpertKey victim, ExpertKey guess) override {
    const auto values = values_->get();
    return (*values)[static_cast<size_t>(victim)] <= (*values)[static_cast<size_t>(guess)];
  }

 private:
  std::shared_ptr<const ExpertValues> values_;
  std::vector<int64_t> last_use_;  // [n_layers * n_experts], in uses
  int64_t n_uses_ = 0;
};

}  // namespace

std::unique_ptr<CachePolicy> make_values(const PolicyContext& context) { return std::make_unique<Values>(context); }

}  // namespace expertree
