// A hold on the experts that one layer of one step needs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace expertree {

class ExpertPager;

// Move-only. Experts come in waves: what is in memory first, the others as they arrive.
//
//   ExpertLease lease = pager.acquire(layer, experts);
//   for (auto wave = lease.next({}); !wave.empty(); wave = lease.next({})) { ... pager.weights(layer, wave[i], p) ... }
class ExpertLease {
 public:
  ExpertLease(ExpertLease&& other) noexcept { swap(other); }
  ExpertLease& operator=(ExpertLease&&) = delete;
  ~ExpertLease();

  // The next experts that can be run, at least one; empty when all have been handed out. They stay where they are until
  // next() is called again or the lease ends, and no longer: with few slots the next ones need their place.
  // Waits for reads; `check_stop` is called meanwhile and may throw. Throws the kDevice error of a read that failed: the
  // other experts are not affected, and asking again reads it again.
  std::span<const int32_t> next(const std::function<void()>& check_stop);

 private:
  friend class ExpertPager;
  struct Waiting {
    int32_t expert;
    int32_t slot;
  };

  ExpertLease(ExpertPager* pager, int32_t layer) : pager_(pager), layer_(layer) {}
  void swap(ExpertLease& other) noexcept {
    std::swap(pager_, other.pager_);
    std::swap(layer_, other.layer_);
    unplaced_.swap(other.unplaced_);
    waiting_.swap(other.waiting_);
    wave_.swap(other.wave_);
    wave_slots_.swap(other.wave_slots_);
  }
  void release_wave();
  void place();
  void collect();

  ExpertPager* pager_ = nullptr;
  int32_t layer_ = 0;
  std::vector<int32_t> unplaced_;   // experts without a slot yet, the next one last
  std::vector<Waiting> waiting_;    // pinned, being read or just arrived
  std::vector<int32_t> wave_;       // experts handed out
  std::vector<int32_t> wave_slots_;
};

}  // namespace expertree
