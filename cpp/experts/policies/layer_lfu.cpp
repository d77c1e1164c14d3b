// How likely an expert is used the next time its layer runs, estimated layer by layer; slots are shared by all layers, so
// a layer that concentrates on few experts keeps those and leaves the rest to others. Starts from a profile where there
// is one. Among equals the one whose layer comes round last goes.
#include <cmath>
#include <vector>

#include "cpp/experts/cache_policy.h"

namespace expertree {
namespace {

constexpr double kLayerHalfLifeRows = 96.0;

class LayerLfu final : public CachePolicy {
 public:
  explicit LayerLfu(const PolicyContext& context)
      : n_experts_(context.n_experts),
        n_layers_(context.n_layers),
        count_(static_cast<size_t>(context.n_layers * context.n_experts), 0.0),
        runs_(static_cast<size_t>(context.n_layers), 0.0) {
    for (size_t i = 0; i < context.profile.size(); ++i) count_[i] = context.profile[i] * kProfileRows;
    if (!context.profile.empty()) runs_.assign(runs_.size(), kProfileRows);
  }

  void begin_rows(int64_t n_rows) override {
    weight_ *= std::exp2(static_cast<double>(n_rows) / kLayerHalfLifeRows);
    layer_ = -1;
    if (weight_ < 1e100) return;
    for (double& count : count_) count /= weight_;
    for (double& runs : runs_) runs /= weight_;
    weight_ = 1.0;
  }

  void begin_layer(int32_t layer, int64_t n_rows) override {
    layer_ = layer;
    runs_[static_cast<size_t>(layer)] += weight_ * static_cast<double>(n_rows);
  }

  void use(ExpertKey key, int64_t n_rows) override {
    count_[static_cast<size_t>(key)] += weight_ * static_cast<double>(n_rows);
  }

  size_t victim(std::span<const ExpertKey> keys) override {
    size_t best = 0;
    double best_rate = 0.0;
    int32_t best_distance = -1;
    for (size_t i = 0; i < keys.size(); ++i) {
      const int32_t layer = keys[i] / n_experts_;
      const double runs = runs_[static_cast<size_t>(layer)];
      const double rate = runs > 0.0 ? count_[static_cast<size_t>(keys[i])] / runs : 0.0;
      const int32_t distance = layer > layer_ ? layer - layer_ : layer - layer_ + n_layers_;
      if (best_distance < 0 || rate < best_rate || (rate == best_rate && distance > best_distance)) {
        best = i;
        best_rate = rate;
        best_distance = distance;
      }
    }
    return best;
  }

 private:
  int32_t n_experts_;
  int32_t n_layers_;
  std::vector<double> count_;  // [n_layers * n_experts], decayed uses
  std::vector<double> runs_;  // [n_layers], decayed rows
  double weight_ = 1.0;  // of a use now
  int32_t layer_ = -1;  // that runs
};

}  // namespace

std::unique_ptr<CachePolicy> make_layer_lfu(const PolicyContext& context) {
  return std::make_unique<LayerLfu>(context);
}

}  // namespace expertree
