#include "cpp/experts/expert_pager.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr int32_t kLongQueue = 3;  // times max_flight_: a disk reads adjacent ranges a fifth faster so (docs/bench.md)
constexpr int32_t kHintFlight = 2;  // a demand read waits for no more than these
constexpr size_t kMaxHints = 4096;
constexpr int32_t kMaxFillFailures = 8;  // then the background leaves a failing disk alone
constexpr uint64_t kTicketStep = 4;  // > kNumProjections

}  // namespace

// ---- Reads, all under the mutex.

void ExpertPager::set_state(ExpertKey key, ExpertState state) {
  const ExpertState before = states_[static_cast<size_t>(key)].exchange(state, std::memory_order_relaxed);
  n_resident_ += (state == ExpertState::kResident) - (before == ExpertState::kResident);
}

int32_t ExpertPager::take(ExpertKey key, FillReason reason) {
  const ExpertCache::Taken taken = cache_.take(key, reason);
  if (taken.evicted >= 0) set_state(taken.evicted, ExpertState::kMissing);
  if (taken.slot < 0) return -1;
  set_state(key, ExpertState::kInFlight);
  Fill& fill = fills_[static_cast<size_t>(taken.slot)];
  fill = {};
  fill.reason = reason;
  if (options_.poison) {
    const auto size_class = static_cast<size_t>(cache_.class_of(key));
    std::memset(memory_[static_cast<size_t>(taken.slot)], 0xff, layout_.slot_bytes()[size_class]);
  }
  return taken.slot;
}

int32_t ExpertPager::read_for(ExpertKey key) {
  int32_t slot = cache_.find(key);
  if (slot < 0) {
    slot = take(key, FillReason::kDemand);
    if (slot < 0) return -1;
    demanded_.push_back(slot);
  }
  cache_.pin(slot);
  return slot;
}

void ExpertPager::release(int32_t slot) {
  const ExpertKey key = cache_.key_in(slot);
  cache_.unpin(slot);
  if (cache_.key_in(slot) != key) set_state(key, ExpertState::kMissing);
  if (cache_.pins(slot) == 0) changed_.notify_all();
}

void ExpertPager::start(std::span<const int32_t> slots) {
  for (const int32_t slot : slots) {
    Fill& fill = fills_[static_cast<size_t>(slot)];
    fill.n_pieces_left = kNumProjections;
    fill.began_ns = now_ns();
    ++n_flight_;
    meter_.started(fill.began_ns / 1000);
  }
  // By projection: in most files those of a layer's experts lie side by side.
  for (int32_t p = 0; p < kNumProjections; ++p) {
    for (const int32_t slot : slots) {
      const ExpertKey key = cache_.key_in(slot);
      const int32_t layer = cache_.layer_of(key);
      const ExpertPiece& piece = layout_.piece(layer, key - cache_.key(layer, 0), p);
      async_->start({piece.file, piece.offset, piece.size, memory_[static_cast<size_t>(slot)] + piece.at,
                     static_cast<uint64_t>(slot) * kTicketStep + static_cast<uint64_t>(p)});
    }
  }
}

// A few experts are started one by one, so that the first of them comes soon. Of many, as in a prompt, half of the long
// queue at a time.
void ExpertPager::start_demanded() {
  std::vector<int32_t> burst;
  while (!demanded_.empty()) {
    const auto n_waiting = static_cast<int32_t>(demanded_.size());
    const bool is_long = n_waiting + n_flight_ > 2 * max_flight_;
    int32_t n = std::min(n_waiting, (is_long ? kLongQueue : 1) * max_flight_ - n_flight_);
    if (is_long && n < kLongQueue * max_flight_ / 2) n = 0;
    if (n <= 0) return;
    if (!is_long) n = 1;
    burst.assign(demanded_.begin(), demanded_.begin() + n);
    demanded_.erase(demanded_.begin(), demanded_.begin() + n);
    start(burst);
  }
}

bool ExpertPager::start_hint() {
  while (!hints_.empty() && hint_bytes_left_ > 0) {
    const ExpertKey key = hints_.back().key;
    hints_.pop_back();
    if (cache_.find(key) >= 0) continue;
    const int32_t slot = take(key, FillReason::kHint);
    if (slot < 0) continue;
    hint_bytes_left_ -= static_cast<int64_t>(layout_.file_bytes(cache_.layer_of(key)));
    ++counts_.n_hint_reads;
    start({&slot, 1});
    return true;
  }
  return false;
}

bool ExpertPager::start_background() {
  while (fill_next_ < fill_order_.size()) {
    const ExpertKey key = fill_order_[fill_next_++];
    if (cache_.find(key) >= 0 || cache_.is_covered(key) || !cache_.has_free(cache_.class_of(key))) continue;
    const int32_t slot = take(key, FillReason::kBackground);
    start({&slot, 1});
    return true;
  }
  return false;
}

void ExpertPager::pump() {
  if (stopping_) return;
  start_demanded();
  if (!demanded_.empty()) return;
  while (n_flight_ < kHintFlight && start_hint()) {
  }
  if (options_.background_fill && n_fill_failures_ < kMaxFillFailures) {
    while (n_flight_ < kHintFlight && start_background()) {
    }
  }
}

ExpertPager::ReadError ExpertPager::read_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.code(), e.what()};
  } catch (const std::exception& e) {
    return {ErrorCode::kDevice, std::string("reading an expert failed: ") + e.what() + "; try again"};
  }
}

void ExpertPager::record_read(ExpertKey key, const Fill& fill, int64_t end_ns) {
  const uint64_t size = layout_.file_bytes(cache_.layer_of(key));
  activity_->reads.push_back({key, fill.reason, fill.error.has_value(), size, fill.began_ns, end_ns});
}

// Called by the reader, on a thread of its own.
void ExpertPager::piece_done(uint64_t ticket, const std::exception_ptr& error) {
  const auto slot = static_cast<int32_t>(ticket / kTicketStep);
  const std::lock_guard<std::mutex> lock(mutex_);
  Fill& fill = fills_[static_cast<size_t>(slot)];
  if (error && !fill.error) fill.error = read_error(error);
  if (--fill.n_pieces_left > 0) return;
  const ExpertKey key = cache_.key_in(slot);
  --n_flight_;
  ++counts_.n_reads;
  const int64_t now = now_ns();
  if (activity_ != nullptr) record_read(key, fill, now);
  if (fill.error) {
    ++counts_.n_failed_reads;
    meter_.ended(now / 1000, 0);
    if (cache_.pins(slot) == 0) {
      // Nobody waits: who needs it reads it again and learns more.
      if (n_fill_failures_++ == 0) fill_error_ = fill.error;
      set_state(key, ExpertState::kMissing);
    }
    cache_.failed(slot);
  } else {
    meter_.ended(now / 1000, layout_.file_bytes(cache_.layer_of(key)));
    cache_.filled(slot);
    set_state(key, ExpertState::kResident);
  }
  pump();
  changed_.notify_all();
}

// ---- Steps.

void ExpertPager::begin_step() {
  ++n_steps_;
  time_step();
  gate_.begin_step(cache_.hints());
  // Guesses get at most half of what the last step needed, whatever their number.
  hint_bytes_left_ = std::max(step_bytes_ / 2, kLeastHintBytes);
  step_bytes_ = 0;
  if (!gate_.is_open()) hints_.clear();
  if (picker_ != nullptr) wanted_policy_ = picker_->pick(cache_.active());
  cache_.set_active(wanted_policy_);
  cache_.begin_step();
  tracing_step_ = trace_ != nullptr;
}

// Times single-token steps that follow one another, from the beginning of one to that of the next.
void ExpertPager::time_step() {
  const int64_t now = now_us();
  const double seconds = static_cast<double>(now - step_began_us_ - (counts_.wait_us - step_wait_us_)) * 1e-6;
  if (step_began_us_ != 0 && step_is_single_ && last_layer_ == layout_.n_layers() - 1) {
    // A pause between steps is the caller's and not the model's.
    if (step_seconds_ == 0.0 || seconds < 4.0 * step_seconds_) {
      step_seconds_ = step_seconds_ == 0.0 ? seconds : 0.95 * step_seconds_ + 0.05 * seconds;
    }
  }
  step_began_us_ = now;
  step_wait_us_ = counts_.wait_us;
  step_is_single_ = true;
}

void ExpertPager::record_use(int32_t layer, std::span<const int32_t> experts) {
  if (layer <= last_layer_ || n_steps_ == 0) begin_step();
  last_layer_ = layer;
  for (const int32_t expert : experts) {
    const ExpertKey key = cache_.key(layer, expert);
    cache_.use(key);
  }
  reuse_.use(layer, experts);
  step_bytes_ += static_cast<int64_t>(experts.size() * layout_.file_bytes(layer));
  std::erase_if(hints_, [&](const ExpertHint& hint) { return cache_.layer_of(hint.key) == layer; });  // too late now
  if (picker_ != nullptr) picker_->record(layer, experts);
  if (tracing_step_) trace_->add(experts);
}

void ExpertPager::count(int32_t moe_layer, std::span<const int32_t> experts, int64_t n_rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  cache_.count(moe_layer, experts, n_rows);
  counted_.n_rows[static_cast<size_t>(moe_layer)] += n_rows;
  for (const int32_t expert : experts) counted_.uses[static_cast<size_t>(cache_.key(moe_layer, expert))] += 1.0;
}

ExpertLease ExpertPager::acquire(int32_t moe_layer, std::span<const int32_t> used, std::span<const int32_t> on_device) {
  ExpertLease lease(this, moe_layer);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    record_use(moe_layer, used);
    counts_.n_uses += static_cast<int64_t>(used.size());
    counts_.n_device_hits += static_cast<int64_t>(on_device.size());
    for (const int32_t expert : used) {
      const ExpertKey key = cache_.key(moe_layer, expert);
      const bool is_on_device = std::find(on_device.begin(), on_device.end(), expert) != on_device.end();
      const int32_t slot = cache_.find(key);
      const bool is_ready = slot >= 0 && cache_.state(slot) == SlotState::kReady;
      if (activity_ != nullptr) {
        PagerActivity& a = *activity_;
        auto& counts = is_on_device || is_ready ? a.n_hits : slot < 0 ? a.n_misses : a.n_late;
        ++counts[static_cast<size_t>(key)];
      }
      if (is_on_device) continue;
      if (slot < 0) {
        ++counts_.n_misses;
        lease.unplaced_.push_back(expert);
        continue;
      }
      ++(is_ready ? counts_.n_hits : counts_.n_late);
      cache_.pin(slot);
      lease.waiting_.push_back({expert, slot});
    }
    std::reverse(lease.unplaced_.begin(), lease.unplaced_.end());
    lease.place();
  }
  return lease;
}

ExpertLease ExpertPager::borrow(int32_t moe_layer, std::span<const int32_t> experts) {
  ExpertLease lease(this, moe_layer);
  const std::lock_guard<std::mutex> lock(mutex_);
  lease.unplaced_.assign(experts.rbegin(), experts.rend());
  lease.place();
  return lease;
}

void ExpertPager::hint(int32_t moe_layer, std::span<const int32_t> experts, float priority) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = experts.size(); i-- > 0;) {  // of equal ones the last is read first
    const ExpertKey key = cache_.key(moe_layer, experts[i]);
    if (cache_.find(key) >= 0 || cache_.is_covered(key)) continue;
    ++counts_.n_hints;
    if (!gate_.is_open() || hints_.size() >= kMaxHints) continue;
    hints_.push_back({key, priority});
  }
  std::stable_sort(hints_.begin(), hints_.end(),
                   [](const ExpertHint& a, const ExpertHint& b) { return a.priority < b.priority; });
  pump();
}

bool ExpertPager::wants_hints() const {
  if (!options_.read_ahead) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  return gate_.is_open() && n_resident_ < static_cast<int64_t>(fill_order_.size());
}

// ---- For others.

ExpertState ExpertPager::state(int32_t moe_layer, int32_t expert) const {
  const auto key = static_cast<size_t>(cache_.key(moe_layer, expert));
  if (on_device_[key].load(std::memory_order_relaxed)) return ExpertState::kOnDevice;
  return states_[key].load(std::memory_order_relaxed);
}

void ExpertPager::set_on_device(int32_t moe_layer, int32_t expert, bool on_device) {
  const ExpertKey key = cache_.key(moe_layer, expert);
  on_device_[static_cast<size_t>(key)].store(on_device, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  cache_.set_covered(key, on_device);
}

CountedUses ExpertPager::counted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counted_;
}

void ExpertPager::set_policy(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find(policy_names_.begin(), policy_names_.end(), name);
  if (found == policy_names_.end()) {
    make_policy(name,
                {layout_.n_layers(), layout_.n_experts(), options_.profile, nullptr, nullptr});  // says what is wrong
  }
  picker_.reset();
  wanted_policy_ = static_cast<size_t>(found - policy_names_.begin());
}

void ExpertPager::fill(const std::function<void()>& check_stop) {
  Lock lock(mutex_);
  options_.background_fill = true;
  fill_error_.reset();
  n_fill_failures_ = 0;
  fill_next_ = 0;
  pump();
  while (n_flight_ > 0 || !demanded_.empty()) {
    if (changed_.wait_for(lock, std::chrono::milliseconds(20)) == std::cv_status::timeout && check_stop) {
      lock.unlock();
      check_stop();
      lock.lock();
    }
  }
  if (fill_error_) throw Error(fill_error_->code, fill_error_->message);
}

PagerStats ExpertPager::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  PagerStats stats = counts_;
  stats.policy = policy_names_[cache_.active()];
  stats.budget_bytes = plan_.bytes;
  stats.all_bytes = plan_.all_bytes;
  stats.n_slots = cache_.n_slots();
  stats.n_resident = n_resident_;
  stats.n_steps = n_steps_;
  stats.n_rows = counted_.n_rows.front();
  stats.bytes_read = meter_.total_bytes();
  const ReadCounts read = async_->counts();
  stats.bytes_from_disk = read.disk_bytes;
  stats.bytes_overread = read.overread_bytes;
  stats.bytes_from_cache = read.cached_bytes;
  stats.read_us = meter_.total_us();
  stats.read_bytes_per_second = meter_.bytes_per_second();
  stats.n_evictions = cache_.n_evictions();
  stats.n_hints_in_time = cache_.hints().n_in_time;
  stats.n_hints_late = cache_.hints().n_late;
  stats.n_hints_wasted = cache_.hints().n_wasted;
  stats.n_hint_closings = gate_.n_closings();
  stats.hints_open = gate_.is_open();
  return stats;
}

void ExpertPager::record_run(int64_t n_experts, int64_t n_rows, int64_t us) {
  const std::lock_guard<std::mutex> lock(mutex_);
  run_cost_.add(n_experts, n_rows, static_cast<double>(us) * 1e-6);
  if (n_rows != n_experts) step_is_single_ = false;
}

void ExpertPager::record_device_run(int64_t n_experts, int64_t n_rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_.n_device_runs += n_experts;
  counts_.n_device_rows += n_rows;
  if (n_rows != n_experts) step_is_single_ = false;
}

void ExpertPager::set_device_costs(const ExpertCosts& costs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  device_costs_ = costs;
}

ExpertCosts ExpertPager::costs() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ExpertCosts costs = device_costs_;
  costs.read_bytes_per_second = meter_.bytes_per_second();
  run_cost_.get(&costs.run_base_seconds, &costs.run_row_seconds);
  costs.step_seconds = step_seconds_;
  return costs;
}

std::vector<float> ExpertPager::profile() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<float> rates(counted_.uses.size());
  const double n_before = options_.profile.empty() ? 0.0 : kProfileRows;
  for (size_t i = 0; i < rates.size(); ++i) {
    const auto layer = static_cast<size_t>(cache_.layer_of(static_cast<ExpertKey>(i)));
    const double n = std::max(1.0, static_cast<double>(counted_.n_rows[layer]) + n_before);
    const double before = options_.profile.empty() ? 0.0 : options_.profile[i] * n_before;
    rates[i] = static_cast<float>((counted_.uses[i] + before) / n);
  }
  return rates;
}

std::vector<float> ExpertPager::reuse() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<float> shares(counted_.uses.size(), 0.0f);
  for (int32_t layer = 0; layer < layout_.n_layers(); ++layer) {
    std::ranges::copy(reuse_.shares(layer), shares.begin() + cache_.key(layer, 0));
  }
  return shares;
}

void ExpertPager::start_trace() {
  const std::lock_guard<std::mutex> lock(mutex_);
  trace_ = std::make_unique<RoutingTrace>(layout_.n_layers(), layout_.n_experts());
}

RoutingTrace ExpertPager::take_trace() {
  const std::lock_guard<std::mutex> lock(mutex_);
  RoutingTrace trace = trace_ != nullptr ? std::move(*trace_) : RoutingTrace(layout_.n_layers(), layout_.n_experts());
  trace_.reset();
  tracing_step_ = false;
  return trace;
}

void ExpertPager::start_activity() {
  const std::lock_guard<std::mutex> lock(mutex_);
  activity_ = std::make_unique<PagerActivity>(states_.size());
}

PagerActivity ExpertPager::take_activity() {
  const std::lock_guard<std::mutex> lock(mutex_);
  PagerActivity activity = activity_ != nullptr ? std::move(*activity_) : PagerActivity(states_.size());
  activity_.reset();
  return activity;
}

}  // namespace expertree
