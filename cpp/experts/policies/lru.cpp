// Least recently used. A model's layers come round in a fixed order, so with too little memory this gives up exactly what
// is needed next; it is here as the yardstick that people know.
#include <algorithm>
#include <vector>

#include "cpp/experts/cache_policy.h"

namespace expertree {
namespace {

class Lru final : public CachePolicy {
 public:
  explicit Lru(const PolicyContext& context)
      : last_use_(static_cast<size_t>(context.n_layers * context.n_experts), 0) {}

  void use(ExpertKey key, int64_t) override { last_use_[static_cast<size_t>(key)] = ++now_; }

  size_t victim(std::span<const ExpertKey> keys) override {
    const auto oldest = std::min_element(keys.begin(), keys.end(), [this](ExpertKey a, ExpertKey b) {
      return last_use_[static_cast<size_t>(a)] < last_use_[static_cast<size_t>(b)];
    });
    return static_cast<size_t>(oldest - keys.begin());
  }

 private:
  std::vector<int64_t> last_use_;
  int64_t now_ = 0;
};

}  // namespace

std::unique_ptr<CachePolicy> make_lru(const PolicyContext& context) { return std::make_unique<Lru>(context); }

}  // namespace expertree
