// A hot set that stays: experts leave in the order of a saved profile, the rarest first; among equals the least recently
// used. What the session itself uses changes nothing else, so the hot set is there from start to end.
#include <vector>

#include "cpp/experts/cache_policy.h"

namespace expertree {
namespace {

class Pinned final : public CachePolicy {
 public:
  explicit Pinned(const PolicyContext& context) : rate_(context.profile), last_use_(context.profile.size(), 0) {}

  void use(ExpertKey key, int64_t) override { last_use_[static_cast<size_t>(key)] = ++now_; }

  size_t victim(std::span<const ExpertKey> keys) override {
    size_t best = 0;
    for (size_t i = 1; i < keys.size(); ++i) {
      const auto a = static_cast<size_t>(keys[i]);
      const auto b = static_cast<size_t>(keys[best]);
      if (rate_[a] != rate_[b] ? rate_[a] < rate_[b] : last_use_[a] < last_use_[b]) best = i;
    }
    return best;
  }

 private:
  std::vector<float> rate_;
  std::vector<int64_t> last_use_;
  int64_t now_ = 0;
};

}  // namespace

std::unique_ptr<CachePolicy> make_pinned(const PolicyContext& context) { return std::make_unique<Pinned>(context); }

}  // namespace expertree
