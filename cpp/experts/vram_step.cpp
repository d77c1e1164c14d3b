#include "cpp/experts/vram_step.h"

#include <algorithm>
#include <numeric>

#include "cpp/base/clock.h"

namespace expertree {

namespace {

constexpr int64_t kFewRows = 2;  // of an expert: what decoding and small trees have, and prompts do not

}  // namespace

VramStep::VramStep(VramTier& tier, int32_t layer, std::span<const int32_t> experts, std::span<const int64_t> n_rows)
    : tier_(tier), layer_(layer), generation_(tier.generation_) {
  if (layer <= tier.last_layer_ || tier.last_layer_ < 0) tier.begin_step();
  tier.last_layer_ = layer;
  if (tier.is_lost() || tier.plan_.class_of_layer[static_cast<size_t>(layer)] < 0) return;
  std::vector<int32_t> others;
  std::vector<int64_t> other_rows;
  int64_t n_hit_rows = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    const ExpertKey key = tier.cache_.key(layer, experts[i]);
    tier.cache_.use(key);
    const int32_t slot = tier.cache_.find(key);
    if (slot < 0) {
      others.push_back(experts[i]);
      other_rows.push_back(n_rows[i]);
      continue;
    }
    tier.cache_.pin(slot);
    pinned_.push_back(slot);
    hits_.push_back(experts[i]);
    n_hit_rows += n_rows[i];
  }
  for (const int32_t i : tier.choose(layer, other_rows, std::ssize(hits_), n_hit_rows)) {
    wanted_.push_back(others[static_cast<size_t>(i)]);
  }
  const std::lock_guard<std::mutex> lock(tier.stats_mutex_);
  tier.stats_.n_hits += std::ssize(hits_);
}

VramStep::~VramStep() {
  if (tier_.generation_ != generation_) return;  // after an error there are no pins
  for (const int32_t slot : pinned_) tier_.cache_.unpin(slot);
}

bool VramStep::fetch(int32_t expert) {
  if (std::find(wanted_.begin(), wanted_.end(), expert) == wanted_.end()) return false;
  const int32_t slot = tier_.bring(layer_, expert, FillReason::kDemand);
  if (slot < 0) return false;
  tier_.cache_.pin(slot);
  pinned_.push_back(slot);
  fetched_ = true;
  return true;
}

void VramStep::offer(int32_t expert) {
  if (!tier_.wants_offer(layer_, expert)) return;
  if (tier_.bring(layer_, expert, FillReason::kOffer) < 0) return;
  tier_.offer_bytes_left_ -= static_cast<int64_t>(tier_.pager_.layout().file_bytes(layer_));
}

void VramStep::run(const float* inputs, int64_t n_inputs, std::span<const DeviceRows> experts) {
  tier_.guarded([&] {
    if (!is_open_) tier_.experts_->begin(layer_, inputs, n_inputs);
    is_open_ = true;
    tier_.experts_->run(experts);
  });
  n_experts_ += std::ssize(experts);
  for (const DeviceRows& rows : experts) n_pairs_ += rows.n;
}

void VramStep::ran_whole(int64_t n_rows) {
  tier_.pager_.record_device_run(std::ssize(hits_), n_rows);
  const std::lock_guard<std::mutex> lock(tier_.stats_mutex_);
  tier_.stats_.n_runs += std::ssize(hits_);
}

const float* VramStep::wait() {
  const int64_t start = now_us();
  const float* outputs = tier_.guarded([&] { return tier_.experts_->wait(); });
  const double seconds = tier_.experts_->run_seconds();
  if (!fetched_ && seconds > 0.0) tier_.run_cost_.add(n_experts_, n_pairs_, seconds);
  if (!fetched_ && n_pairs_ <= kFewRows * n_experts_) ++tier_.n_measured_;
  tier_.pager_.record_device_run(n_experts_, n_pairs_);
  {
    const std::lock_guard<std::mutex> lock(tier_.stats_mutex_);
    tier_.stats_.n_runs += n_experts_;
    tier_.stats_.wait_us += now_us() - start;
  }
  is_open_ = false;
  n_experts_ = n_pairs_ = 0;
  return outputs;
}

}  // namespace expertree
