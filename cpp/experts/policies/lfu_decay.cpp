// Least frequently used, with counts that halve every kHalfLifeRows; among equals the least recently used goes.
#include <cmath>
#include <vector>

#include "cpp/experts/cache_policy.h"

namespace expertree {
namespace {

// A topic lasts tens of tokens; much shorter and the count is noise.
constexpr double kHalfLifeRows = 64.0;

class LfuDecay final : public CachePolicy {
 public:
  explicit LfuDecay(const PolicyContext& context) : uses_(static_cast<size_t>(context.n_layers * context.n_experts)) {}

  void begin_rows(int64_t n_rows) override {
    weight_ *= std::exp2(static_cast<double>(n_rows) / kHalfLifeRows);  // of a use now: old counts shrink against it
    if (weight_ < 1e100) return;
    for (Use& use : uses_) use.count /= weight_;
    weight_ = 1.0;
  }

  void use(ExpertKey key, int64_t n_rows) override {
    Use& use = uses_[static_cast<size_t>(key)];
    use.count += weight_ * static_cast<double>(n_rows);
    use.last = ++now_;
  }

  size_t victim(std::span<const ExpertKey> keys) override {
    size_t best = 0;
    for (size_t i = 1; i < keys.size(); ++i) {
      const Use& a = uses_[static_cast<size_t>(keys[i])];
      const Use& b = uses_[static_cast<size_t>(keys[best])];
      if (a.count != b.count ? a.count < b.count : a.last < b.last) best = i;
    }
    return best;
  }

 private:
  struct Use {
    double count = 0.0;
    int64_t last = 0;
  };
  std::vector<Use> uses_;
  double weight_ = 1.0;
  int64_t now_ = 0;
};

}  // namespace

std::unique_ptr<CachePolicy> make_lfu_decay(const PolicyContext& context) {
  return std::make_unique<LfuDecay>(context);
}

}  // namespace expertree
