#include "cpp/experts/expert_cache.h"

#include <limits>

#include "cpp/base/error.h"

namespace expertree {

ExpertCache::ExpertCache(Shape shape, std::vector<std::unique_ptr<CachePolicy>> policies)
    : shape_(std::move(shape)), policies_(std::move(policies)), free_(shape_.n_slots.size()) {
  ET_CHECK(!policies_.empty());
  class_begin_.push_back(0);
  for (size_t c = 0; c < shape_.n_slots.size(); ++c) {
    const auto begin = static_cast<int32_t>(slots_.size());
    const auto n = static_cast<int32_t>(shape_.n_slots[c]);
    Slot slot;
    slot.size_class = static_cast<int32_t>(c);
    slots_.insert(slots_.end(), static_cast<size_t>(n), slot);
    for (int32_t s = begin + n; s-- > begin;) free_[c].push_back(s);  // the first one is taken first
    class_begin_.push_back(begin + n);
  }
  slot_of_.assign(static_cast<size_t>(shape_.n_layers) * static_cast<size_t>(shape_.n_experts), -1);
  covered_.assign(slot_of_.size(), false);
}

void ExpertCache::count(int32_t layer, std::span<const int32_t> experts, int64_t n_rows) {
  const bool begins = layer <= counted_layer_ || counted_layer_ < 0;
  counted_layer_ = layer;
  n_rows_of_.assign(static_cast<size_t>(shape_.n_experts), 0);
  for (const int32_t expert : experts) ++n_rows_of_[static_cast<size_t>(expert)];
  for (const auto& policy : policies_) {
    if (begins) policy->begin_rows(n_rows);
    policy->begin_layer(layer, n_rows);
    for (int32_t expert = 0; expert < shape_.n_experts; ++expert) {
      const int64_t n = n_rows_of_[static_cast<size_t>(expert)];
      if (n > 0) policy->use(key(layer, expert), n);
    }
  }
}

void ExpertCache::use(ExpertKey key) {
  const int32_t at = find(key);
  if (at < 0) return;
  Slot& slot = slots_[static_cast<size_t>(at)];
  if (slot.reason == FillReason::kHint && !slot.used) {
    ++(slot.state == SlotState::kReady ? hints_.n_in_time : hints_.n_late);
  }
  slot.used = true;
  slot.last_step = step_;
}

// Fills candidates_ with what may go: last used before the step, and unless `spare_hints` is off no fresh unused hint.
bool ExpertCache::collect(int32_t size_class, int64_t before_step, bool spare_hints) {
  candidates_.clear();
  const auto end = static_cast<size_t>(class_begin_[static_cast<size_t>(size_class) + 1]);
  for (auto s = static_cast<size_t>(class_begin_[static_cast<size_t>(size_class)]); s < end; ++s) {
    const Slot& slot = slots_[s];
    if (slot.state != SlotState::kReady || slot.n_pins > 0 || slot.last_step >= before_step) continue;
    if (spare_hints && slot.reason == FillReason::kHint && !slot.used && slot.last_step >= step_ - 1) continue;
    candidates_.push_back(slot.key);
  }
  return !candidates_.empty();
}

// The same of those that a faster tier holds.
bool ExpertCache::collect_covered(int32_t size_class) {
  candidates_.clear();
  if (n_covered_ == 0) return false;
  const auto end = static_cast<size_t>(class_begin_[static_cast<size_t>(size_class) + 1]);
  for (auto s = static_cast<size_t>(class_begin_[static_cast<size_t>(size_class)]); s < end; ++s) {
    const Slot& slot = slots_[s];
    if (slot.state == SlotState::kReady && slot.n_pins == 0 && is_covered(slot.key)) candidates_.push_back(slot.key);
  }
  return !candidates_.empty();
}

// The same of those that may go for the key.
bool ExpertCache::collect_for(ExpertKey key, FillReason reason) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const int32_t size_class = class_of(key);
  switch (reason) {
    case FillReason::kBackground: return false;
    case FillReason::kHint:
    case FillReason::kOffer: return collect_covered(size_class) || collect(size_class, step_ - 1, true);
    case FillReason::kDemand: break;
  }
  return collect_covered(size_class) || collect(size_class, kAny, true) || collect(size_class, kAny, false);
}

// The slot to be given up for the key, or -1.
int32_t ExpertCache::choose_victim(ExpertKey key, FillReason reason, const std::function<bool(ExpertKey)>& may_go) {
  if (!collect_for(key, reason)) return -1;
  if (may_go) std::erase_if(candidates_, [&](ExpertKey candidate) { return !may_go(candidate); });
  if (candidates_.empty()) return -1;
  if (reason == FillReason::kOffer) candidates_.push_back(key);
  const size_t chosen = policies_[active_]->victim(candidates_);
  ET_CHECK(chosen < candidates_.size());
  const bool is_guess = reason == FillReason::kHint && !is_covered(candidates_[chosen]);
  if (is_guess && !policies_[active_]->may_go_for_guess(candidates_[chosen], key)) return -1;
  return find(candidates_[chosen]);  // -1: the key itself, which has no slot
}

ExpertCache::Taken ExpertCache::take(ExpertKey key, FillReason reason, const std::function<bool(ExpertKey)>& may_go) {
  ET_CHECK(find(key) < 0);
  Taken taken;
  std::vector<int32_t>& free = free_[static_cast<size_t>(class_of(key))];
  if (!free.empty()) {
    taken.slot = free.back();
    free.pop_back();
  } else {
    taken.slot = choose_victim(key, reason, may_go);
    if (taken.slot < 0) return taken;
    taken.evicted = slots_[static_cast<size_t>(taken.slot)].key;
    evict(&slots_[static_cast<size_t>(taken.slot)]);
  }
  Slot& slot = slots_[static_cast<size_t>(taken.slot)];
  slot.key = key;
  slot.state = SlotState::kFilling;
  slot.reason = reason;
  slot.used = reason == FillReason::kDemand || reason == FillReason::kOffer;
  slot.last_step = reason == FillReason::kBackground ? -2 : step_;
  slot_of_[static_cast<size_t>(key)] = taken.slot;
  return taken;
}

void ExpertCache::evict(Slot* slot) {
  if (slot->reason == FillReason::kHint && !slot->used) ++hints_.n_wasted;
  ++n_evictions_;
  slot_of_[static_cast<size_t>(slot->key)] = -1;
}

void ExpertCache::clear() {
  for (size_t s = 0; s < slots_.size(); ++s) {
    Slot& slot = slots_[s];
    if (slot.key < 0) continue;
    slot.n_pins = 0;
    free_slot(static_cast<int32_t>(s));
  }
}

void ExpertCache::set_covered(ExpertKey key, bool covered) {
  if (is_covered(key) == covered) return;
  covered_[static_cast<size_t>(key)] = covered;
  n_covered_ += covered ? 1 : -1;
}

void ExpertCache::filled(int32_t slot) {
  ET_CHECK(state(slot) == SlotState::kFilling);
  slots_[static_cast<size_t>(slot)].state = SlotState::kReady;
}

void ExpertCache::failed(int32_t slot) {
  ET_CHECK(state(slot) == SlotState::kFilling);
  slots_[static_cast<size_t>(slot)].state = SlotState::kFailed;
  if (pins(slot) == 0) free_slot(slot);
}

void ExpertCache::unpin(int32_t at) {
  Slot& slot = slots_[static_cast<size_t>(at)];
  ET_CHECK(slot.n_pins > 0);
  --slot.n_pins;
  if (slot.n_pins == 0 && slot.state == SlotState::kFailed) free_slot(at);
}

void ExpertCache::free_slot(int32_t at) {
  Slot& slot = slots_[static_cast<size_t>(at)];
  slot_of_[static_cast<size_t>(slot.key)] = -1;
  slot.key = -1;
  slot.state = SlotState::kFree;
  free_[static_cast<size_t>(slot.size_class)].push_back(at);
}

}  // namespace expertree
