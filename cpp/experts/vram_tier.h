// Experts in the memory of a device, in front of those in RAM: which ones stay there, which are copied there to run, and
// their runs. A tier serves one thread at a time; what is marked so may be asked from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cpp/backend/device.h"
#include "cpp/experts/expert_cache.h"
#include "cpp/experts/expert_pager.h"
#include "cpp/experts/expert_split.h"
#include "cpp/experts/vram_plan.h"

namespace expertree {

struct VramStats {
  uint64_t fixed_bytes = 0;  // taken beside slots
  int64_t n_slots = 0;
  int64_t n_resident = 0;
  int64_t n_hits = 0;  // uses of experts that were there
  int64_t n_fetches = 0;  // experts copied to be run at once
  int64_t n_offers = 0;  // experts copied for later
  int64_t n_evictions = 0;
  int64_t n_errors = 0;
  int64_t n_runs = 0;  // experts run there
  uint64_t bytes_copied = 0;
  int64_t wait_us = 0;  // for outputs
  bool is_lost = false;  // it failed and is left alone
};

class VramTier {
 public:
  // Copies of memory, as fast as several threads can.
  using Copy = std::function<void(std::byte* to, const std::byte* from, uint64_t size)>;

  // Takes the plan's memory. `pager` outlives this. Throws kOutOfMemory, kDevice, kInvalidRequest (policy).
  VramTier(ExpertPager& pager, std::shared_ptr<Device> device, VramPlan plan, const VramOptions& options,
           const PagerOptions& pager_options, Copy copy);
  ~VramTier();
  VramTier(const VramTier&) = delete;
  VramTier& operator=(const VramTier&) = delete;

  int64_t max_pairs() const { return plan_.device.max_pairs; }
  DeviceExperts& device_experts() { return *experts_; }
  // Whether a call of blocks may run the layer's experts: all are there, and published.
  bool may_run_whole(int32_t layer);
  // As ExpertPager::count.
  void count(int32_t layer, std::span<const int32_t> experts, int64_t n_rows) { cache_.count(layer, experts, n_rows); }
  // Copies hot experts into free slots; `check_stop` may throw.
  void fill(const std::function<void()>& check_stop);

  // The device is lost: somebody else has found out.
  void give_up() noexcept;
  bool is_lost() const { return stats_.is_lost; }

  // From any thread.
  VramStats stats() const;

 private:
  friend class VramStep;

  void begin_step();
  // Of the layer's experts [i] that are not on the device: whether they are to be copied and run there.
  std::vector<int32_t> choose(int32_t layer, std::span<const int64_t> n_rows, int64_t n_hits, int64_t n_hit_rows);
  // The slot of an expert on the device from now on, or -1 when there is none to be had. Its weights are in RAM, held.
  int32_t bring(int32_t layer, int32_t expert, FillReason reason);
  bool wants_offer(int32_t layer, int32_t expert);
  void copy_into(int32_t slot, int32_t layer, int32_t expert);
  // Calls the device; when that throws, nothing is on it any more.
  template <typename Function>
  auto guarded(const Function& function) -> decltype(function()) {
    try {
      return function();
    } catch (...) {
      forget_all();
      throw;
    }
  }
  void forget_all() noexcept;
  void drop_all(bool is_lost) noexcept;
  ExpertCache make_cache() const;

  ExpertPager& pager_;
  std::shared_ptr<Device> device_;
  VramPlan plan_;
  VramOptions options_;
  PagerOptions pager_options_;
  Copy copy_;
  std::unique_ptr<DeviceExperts> experts_;
  ExpertCache cache_;
  ExpertCosts costs_;  // as of the step's beginning
  double stage_bytes_per_second_;
  RunCostFit run_cost_;
  int32_t last_layer_ = -1;
  int64_t n_measured_ = 0;  // runs of few rows
  std::vector<int32_t> n_there_;  // experts, by layer
  std::vector<bool> published_;  // by layer
  int64_t generation_ = 0;  // grows when all is forgotten
  int64_t offer_bytes_left_ = 0;
  uint64_t n_shuffled_ = 0;
  mutable std::mutex stats_mutex_;
  VramStats stats_;
};

}  // namespace expertree
