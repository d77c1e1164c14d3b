// The bound: knows the future and gives up what is used again last. L. A. Belady, "A study of replacement algorithms for a
// virtual-storage computer", IBM Systems Journal 5(2), 1966.
#include <limits>
#include <vector>

#include "cpp/experts/cache_policy.h"

namespace expertree {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Belady final : public CachePolicy {
 public:
  explicit Belady(const PolicyContext& context)
      : n_experts_(context.n_experts), n_layers_(context.n_layers), uses_(static_cast<size_t>(n_layers_ * n_experts_)) {
    const RoutingTrace& trace = *context.future;
    for (int64_t step = 0; step < trace.n_steps(); ++step) {
      for (int32_t layer = 0; layer < n_layers_; ++layer) {
        for (const int32_t expert : trace.experts(step, layer)) {
          uses_[static_cast<size_t>(layer * n_experts_ + expert)].when.push_back(step * n_layers_ + layer);
        }
      }
    }
  }

  void begin_rows(int64_t) override { ++step_; }  // the trace's steps
  void use(ExpertKey key, int64_t) override { now_ = step_ * n_layers_ + key / n_experts_; }

  size_t victim(std::span<const ExpertKey> keys) override {
    size_t best = 0;
    int64_t best_next = -1;
    for (size_t i = 0; i < keys.size(); ++i) {
      const int64_t next = next_use(keys[i]);
      if (next > best_next) {
        best = i;
        best_next = next;
      }
    }
    return best;
  }

 private:
  struct Uses {
    std::vector<int64_t> when;  // ascending
    size_t next = 0;
  };

  int64_t next_use(ExpertKey key) {
    Uses& uses = uses_[static_cast<size_t>(key)];
    while (uses.next < uses.when.size() && uses.when[uses.next] <= now_) ++uses.next;
    return uses.next < uses.when.size() ? uses.when[uses.next] : kNever;
  }

  int32_t n_experts_;
  int32_t n_layers_;
  std::vector<Uses> uses_;
  int64_t step_ = -1;
  int64_t now_ = -1;
};

}  // namespace

std::unique_ptr<CachePolicy> make_belady(const PolicyContext& context) { return std::make_unique<Belady>(context); }

}  // namespace expertree
