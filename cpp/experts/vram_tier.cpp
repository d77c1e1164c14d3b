#include "cpp/experts/vram_tier.h"

#include <algorithm>
#include <numeric>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

namespace expertree {
namespace {

// Copying for later takes at most this share of a step's time: while there is room, and when others must go.
constexpr double kFillShare = 0.25;
constexpr double kExchangeShare = 0.05;
constexpr int64_t kFirstOffers = 16;  // experts of a step, before a step's time is known
constexpr int64_t kWorthACopy = 8;  // rows of an expert, before it is known what running one takes here
constexpr double kUsualStaging = 8e9;  // bytes per second, before it is measured
constexpr double kStagingKeep = 0.9;

}  // namespace

VramTier::VramTier(ExpertPager& pager, std::shared_ptr<Device> device, VramPlan plan, const VramOptions& options,
                   const PagerOptions& pager_options, Copy copy)
    : pager_(pager),
      device_(std::move(device)),
      plan_(std::move(plan)),
      options_(options),
      pager_options_(pager_options),
      copy_(std::move(copy)),
      cache_(make_cache()),
      stage_bytes_per_second_(kUsualStaging),
      n_there_(plan_.device.layers.size(), 0),
      published_(plan_.device.layers.size(), false) {
  experts_ = device_->make_experts(plan_.device);
  stats_.fixed_bytes = plan_.fixed_bytes;
  stats_.n_slots = cache_.n_slots();
  costs_.link_bytes_per_second = experts_->measure_link();
}

VramTier::~VramTier() = default;

ExpertCache VramTier::make_cache() const {
  const SlotLayout& layout = pager_.layout();
  ExpertCache::Shape shape{layout.n_layers(), layout.n_experts(), {}, plan_.device.n_slots};
  // Layers that the device does not run take no slots, whatever their class.
  for (const int32_t c : plan_.class_of_layer) shape.class_of_layer.push_back(std::max(c, 0));
  const std::string& name = pager_options_.policy;
  std::vector<std::unique_ptr<CachePolicy>> policies;
  policies.push_back(
      make_policy(name == "auto" ? kDefaultPolicy : name,
                  {layout.n_layers(), layout.n_experts(), pager_options_.profile, nullptr, pager_.values()}));
  return ExpertCache(std::move(shape), std::move(policies));
}

bool VramTier::may_run_whole(int32_t layer) {
  const auto l = static_cast<size_t>(layer);
  if (published_[l]) return true;
  const int32_t n_experts = plan_.device.layers[l].n_experts;
  if (is_lost() || n_experts == 0 || n_there_[l] < n_experts) return false;
  const auto n_layers = std::ranges::count_if(plan_.class_of_layer, [](int32_t c) { return c >= 0; });
  if (n_measured_ < options_.measured_runs * n_layers) return false;
  std::vector<int32_t> slots;
  for (int32_t e = 0; e < n_experts; ++e) slots.push_back(cache_.find(cache_.key(layer, e)));
  guarded([&] { experts_->publish(layer, slots); });
  published_[l] = true;
  return true;
}

void VramTier::begin_step() {
  cache_.begin_step();
  const double link = costs_.link_bytes_per_second;
  costs_ = pager_.costs();
  costs_.link_bytes_per_second = link;
  run_cost_.get(&costs_.device_base_seconds, &costs_.device_row_seconds);
  pager_.set_device_costs(costs_);
  const auto slot = static_cast<int64_t>(plan_.device.slot_bytes.front());
  const bool has_room = stats_.n_resident < stats_.n_slots;
  const double rate = std::min(link, stage_bytes_per_second_);
  const double seconds = (has_room ? kFillShare : kExchangeShare) * costs_.step_seconds;
  offer_bytes_left_ =
      costs_.step_seconds > 0.0 ? std::max(slot, static_cast<int64_t>(seconds * rate)) : kFirstOffers * slot;
}

std::vector<int32_t> VramTier::choose(int32_t layer, std::span<const int64_t> n_rows, int64_t n_hits,
                                      int64_t n_hit_rows) {
  std::vector<int32_t> all(n_rows.size());
  std::iota(all.begin(), all.end(), 0);
  switch (options_.fetch) {
    case FetchRule::kAlways: return all;
    case FetchRule::kNever: return {};
    case FetchRule::kShuffled:
      std::erase_if(all, [this](int32_t) { return (++n_shuffled_ * 0x9e3779b97f4a7c15u >> 62) == 0; });
      return all;
    case FetchRule::kByCost: break;
  }
  if (costs_.run_seconds(1) == 0.0) {
    std::erase_if(all, [&](int32_t i) { return n_rows[static_cast<size_t>(i)] < kWorthACopy; });
    return all;
  }
  const auto bytes = static_cast<double>(pager_.layout().file_bytes(layer));
  const auto size_class = static_cast<size_t>(plan_.class_of_layer[static_cast<size_t>(layer)]);
  return split_experts(costs_,
                       {.copy_seconds = bytes / costs_.link_bytes_per_second,
                        .stage_seconds = bytes / stage_bytes_per_second_,
                        .n_device_experts = n_hits,
                        .n_device_rows = n_hit_rows,
                        .most = plan_.device.n_slots[size_class] - n_hits},
                       n_rows);
}

bool VramTier::wants_offer(int32_t layer, int32_t expert) {
  if (is_lost() || offer_bytes_left_ <= 0 || plan_.class_of_layer[static_cast<size_t>(layer)] < 0) return false;
  if (cache_.find(cache_.key(layer, expert)) >= 0) return false;
  return !guarded([&] { return experts_->is_link_busy(); });
}

void VramTier::copy_into(int32_t slot, int32_t layer, int32_t expert) {
  const DeviceExpertLayer& shape = plan_.device.layers[static_cast<size_t>(layer)];
  std::byte* staged = experts_->stage(layer);
  const int64_t start = now_us();
  uint64_t bytes = 0;
  for (int m = 0; m < kExpertMatrices; ++m) {
    const auto size = static_cast<uint64_t>(shape.matrices[m].size_bytes());
    copy_(staged + shape.offset_of(m), pager_.weights(layer, expert, static_cast<ExpertProjection>(m)).data, size);
    bytes += size;
  }
  const double rate = static_cast<double>(bytes) * 1e6 / static_cast<double>(std::max<int64_t>(1, now_us() - start));
  stage_bytes_per_second_ = kStagingKeep * stage_bytes_per_second_ + (1.0 - kStagingKeep) * rate;
  experts_->copy(slot, layer);
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  stats_.bytes_copied += bytes;
}

int32_t VramTier::bring(int32_t layer, int32_t expert, FillReason reason) {
  const ExpertKey key = cache_.key(layer, expert);
  // An expert that RAM does not hold, too, would have to be read again: for that the device keeps it where RAM is short.
  const bool is_for_tests = options_.fetch == FetchRule::kAlways || options_.fetch == FetchRule::kShuffled;
  std::function<bool(ExpertKey)> may_go;
  if (!pager_.plan().holds_all() && !is_for_tests) may_go = [this](ExpertKey k) { return pager_.is_in_ram(k); };
  const ExpertCache::Taken taken = cache_.take(key, reason, may_go);
  if (taken.slot < 0) return -1;
  if (taken.evicted >= 0) {
    const int32_t evicted_layer = cache_.layer_of(taken.evicted);
    pager_.set_on_device(evicted_layer, taken.evicted - cache_.key(evicted_layer, 0), false);
    --n_there_[static_cast<size_t>(evicted_layer)];
    published_[static_cast<size_t>(evicted_layer)] = false;
  }
  guarded([&] { copy_into(taken.slot, layer, expert); });
  cache_.filled(taken.slot);
  pager_.set_on_device(layer, expert, true);
  ++n_there_[static_cast<size_t>(layer)];
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  stats_.n_evictions = cache_.n_evictions();
  if (taken.evicted < 0) ++stats_.n_resident;
  ++(reason == FillReason::kDemand ? stats_.n_fetches : stats_.n_offers);
  return taken.slot;
}

void VramTier::forget_all() noexcept {
  const bool works = experts_->recover();
  {
    const std::lock_guard<std::mutex> lock(stats_mutex_);
    ++stats_.n_errors;
  }
  drop_all(!works);
}

void VramTier::give_up() noexcept { drop_all(true); }

void VramTier::drop_all(bool is_lost) noexcept {
  for (int32_t slot = 0; slot < cache_.n_slots(); ++slot) {
    const ExpertKey key = cache_.key_in(slot);
    if (key < 0) continue;
    const int32_t layer = cache_.layer_of(key);
    pager_.set_on_device(layer, key - cache_.key(layer, 0), false);
  }
  cache_.clear();
  n_there_.assign(n_there_.size(), 0);
  published_.assign(published_.size(), false);
  ++generation_;
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  stats_.n_resident = 0;
  stats_.is_lost = is_lost;
}

void VramTier::fill(const std::function<void()>& check_stop) {
  const std::vector<float> profile = pager_.profile();
  std::vector<ExpertKey> order(profile.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](ExpertKey a, ExpertKey b) {
    return profile[static_cast<size_t>(a)] > profile[static_cast<size_t>(b)];
  });
  for (const ExpertKey key : order) {
    const int32_t layer = cache_.layer_of(key);
    const int32_t expert[] = {key - cache_.key(layer, 0)};
    if (is_lost() || expert[0] >= pager_.layout().n_experts_of(layer)) continue;
    if (plan_.class_of_layer[static_cast<size_t>(layer)] < 0 || cache_.find(key) >= 0) continue;
    if (!cache_.has_free(cache_.class_of(key))) continue;
    ExpertLease lease = pager_.borrow(layer, expert);
    if (!lease.next(check_stop).empty()) bring(layer, expert[0], FillReason::kBackground);
  }
}

VramStats VramTier::stats() const {
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  return stats_;
}

}  // namespace expertree
