#include "cpp/experts/expert_lease.h"

#include <chrono>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"
#include "cpp/experts/expert_pager.h"

namespace expertree {
namespace {

// Slots that one lease has in hand ahead of the experts it has got: enough to keep the disk busy, few enough that a long
// prefill does not sweep out what other layers keep.
constexpr size_t kMaxWaiting = 24;
constexpr std::chrono::milliseconds kStopCheck{20};

}  // namespace

ExpertLease::~ExpertLease() {
  if (pager_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(pager_->mutex_);
  release_wave();
  for (const Waiting& waiting : waiting_) pager_->release(waiting.slot);
}

void ExpertLease::release_wave() {
  for (const int32_t slot : wave_slots_) pager_->release(slot);
  wave_slots_.clear();
  wave_.clear();
}

void ExpertLease::place() {
  while (!unplaced_.empty() && waiting_.size() < kMaxWaiting) {
    const int32_t expert = unplaced_.back();
    const int32_t slot = pager_->read_for(pager_->cache_.key(layer_, expert));
    if (slot < 0) break;
    unplaced_.pop_back();
    waiting_.push_back({expert, slot});
  }
  pager_->pump();
}

// Moves what has arrived from waiting_ to the wave. Throws the error of a read that failed.
void ExpertLease::collect() {
  size_t kept = 0;
  for (const Waiting& waiting : waiting_) {
    if (pager_->cache_.state(waiting.slot) == SlotState::kReady) {
      wave_.push_back(waiting.expert);
      wave_slots_.push_back(waiting.slot);
    } else {
      waiting_[kept++] = waiting;
    }
  }
  waiting_.resize(kept);
  for (const Waiting& waiting : waiting_) {
    if (pager_->cache_.state(waiting.slot) != SlotState::kFailed) continue;
    const auto& error = pager_->fills_[static_cast<size_t>(waiting.slot)].error;
    throw Error(error->code, error->message);
  }
}

std::span<const int32_t> ExpertLease::next(const std::function<void()>& check_stop) {
  if (check_stop) check_stop();
  ExpertPager::Lock lock(pager_->mutex_);
  release_wave();
  int64_t waited_since = 0;
  for (;;) {
    place();
    collect();
    if (!wave_.empty() || (waiting_.empty() && unplaced_.empty())) break;
    if (waited_since == 0) waited_since = now_us();
    if (pager_->changed_.wait_for(lock, kStopCheck) == std::cv_status::timeout && check_stop) {
      lock.unlock();
      check_stop();
      lock.lock();
    }
  }
  if (waited_since != 0) pager_->counts_.wait_us += now_us() - waited_since;
  return wave_;
}

}  // namespace expertree
