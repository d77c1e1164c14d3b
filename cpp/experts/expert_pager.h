// Experts in a bounded amount of memory: read from the model's files when needed, kept as long as the policy says.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/base/memory.h"
#include "cpp/experts/cost_model.h"
#include "cpp/experts/expert_cache.h"
#include "cpp/experts/expert_lease.h"
#include "cpp/experts/hint_gate.h"
#include "cpp/experts/pager_activity.h"
#include "cpp/experts/pager_options.h"
#include "cpp/experts/policy_picker.h"
#include "cpp/experts/read_meter.h"
#include "cpp/experts/residency.h"
#include "cpp/experts/reuse_meter.h"
#include "cpp/experts/slot_layout.h"
#include "cpp/io/async_reader.h"
#include "cpp/tensor/weight.h"

namespace expertree {

class ExpertPager final : public Residency {
 public:
  // The files of `reader` must be the ones that the index speaks of; the reader is kept. Reads nothing yet, except in the
  // background. Throws kOutOfMemory (names the least budget), kInvalidRequest (policy), kDevice.
  ExpertPager(const ExpertIndex& index, std::shared_ptr<const GgufReader> reader, PagerOptions options);
  // Waits for the reads that are under way.
  ~ExpertPager() override;

  // Asks for the experts (each once) of the next layer of a step; a layer that is not after the last one begins a new
  // step. Experts in memory are there at once, the others are read, first come first served. See ExpertLease.
  ExpertLease acquire(int32_t moe_layer, std::span<const int32_t> experts) { return acquire(moe_layer, experts, {}); }
  // The same of all `used` experts but those on a device, which the step uses there.
  ExpertLease acquire(int32_t moe_layer, std::span<const int32_t> used, std::span<const int32_t> on_device);
  // n rows of the text used these experts of the layer, row by row: what policies and profile() learn from. Told before
  // acquire() of rows that are sure to stay, and of a draft's when they do; layers in order, as there.
  void count(int32_t moe_layer, std::span<const int32_t> experts, int64_t n_rows);
  ExpertLease borrow(int32_t moe_layer, std::span<const int32_t> experts);  // the same of experts that no step uses
  // A device holds the expert, too, or no longer.
  void set_on_device(int32_t moe_layer, int32_t expert, bool on_device);
  // The weights of an expert that a lease has handed out and still holds.
  WeightMatrix weights(int64_t moe_layer, int64_t expert, ExpertProjection projection) const {
    const auto e = static_cast<int32_t>(expert);
    const auto layer = static_cast<int32_t>(moe_layer);
    const auto slot = static_cast<size_t>(cache_.find(cache_.key(layer, e)));
    const Shape& s = shapes_[static_cast<size_t>(moe_layer * kNumProjections + projection)];
    const float scale = s.scales.empty() ? 1.0f : s.scales[static_cast<size_t>(expert)];
    return {s.dtype, memory_[slot] + layout_.piece(layer, e, projection).at, s.rows, s.k, s.row_bytes, scale};
  }

  // These experts, the likeliest first, will probably be needed soon; those of higher priority are read first. Costs
  // nothing but idle time of the disk and experts that no recent step used; forgotten hints are no error.
  void hint(int32_t moe_layer, std::span<const int32_t> experts, float priority);
  // Somebody should guess: there are experts on disk, and guesses have paid of late.
  bool wants_hints() const;
  ExpertState state(int32_t moe_layer, int32_t expert) const override;
  // In RAM, whether a device has it or not. From any thread.
  bool is_in_ram(ExpertKey key) const {
    return states_[static_cast<size_t>(key)].load(std::memory_order_relaxed) == ExpertState::kResident;
  }

  // What the policy "values" goes by; nullptr with another one.
  std::shared_ptr<ExpertValues> values() const { return values_; }
  // From any thread; counts from the next step on. Throws kInvalidRequest for a policy that cannot run here.
  void set_policy(const std::string& name);
  // Reads in the background until every expert that has room is in memory, and waits for it; `check_stop` is called now
  // and then and may throw. Throws what reading threw.
  void fill(const std::function<void()>& check_stop);

  const SlotPlan& plan() const { return plan_; }
  const SlotLayout& layout() const { return layout_; }
  ExpertCache::Shape cache_shape() const;
  const char* reader_name() const { return async_->name(); }
  PagerStats stats() const;
  // Tells what running experts that are in memory took; `n_rows` of all of them together.
  void record_run(int64_t n_experts, int64_t n_rows, int64_t us);
  // The same of experts on a device, and what they cost there.
  void record_device_run(int64_t n_experts, int64_t n_rows);
  void set_device_costs(const ExpertCosts& costs);
  ExpertCosts costs() const;
  CountedUses counted() const;
  // [n_layers * n_experts]: uses per counted row of each expert so far, with the loaded profile's share; ReuseMeter's shares.
  std::vector<float> profile() const;
  std::vector<float> reuse() const;
  // Remembers from now on what each step uses; the trace since then, whole steps only, and stops.
  void start_trace();
  RoutingTrace take_trace();
  // The same of what happens to each expert.
  void start_activity();
  PagerActivity take_activity();

 private:
  friend class ExpertLease;
  struct Shape {
    DType dtype;
    int64_t rows;
    int64_t k;
    int64_t row_bytes;
    std::vector<float> scales;  // [n_experts]; empty: all 1
  };
  // A reader's error as values: who waits throws an exception of its own, none is shared between threads.
  struct ReadError {
    ErrorCode code;
    std::string message;
  };
  struct Fill {
    int32_t n_pieces_left = 0;
    std::optional<ReadError> error;  // the first one
    FillReason reason = FillReason::kDemand;
    int64_t began_ns = 0;
  };
  static constexpr int64_t kLeastHintBytes = int64_t{12} << 20;
  using Lock = std::unique_lock<std::mutex>;

  // All with mutex_ held.
  void begin_step();
  void time_step();
  void record_use(int32_t layer, std::span<const int32_t> experts);
  int32_t take(ExpertKey key, FillReason reason);
  int32_t read_for(ExpertKey key);  // the slot where a demanded expert is or will be, pinned; -1: none free at present
  void release(int32_t slot);
  void pump();
  bool start_hint();
  bool start_background();
  void start(std::span<const int32_t> slots);
  void start_demanded();
  void set_state(ExpertKey key, ExpertState state);
  static ReadError read_error(const std::exception_ptr& error);
  void record_read(ExpertKey key, const Fill& fill, int64_t end_ns);
  void piece_done(uint64_t ticket, const std::exception_ptr& error);
  ExpertCache make_cache();  // with all policies that can run here
  void index_shapes(const ExpertIndex& index);
  void place_slots();
  void order_background();

  PagerOptions options_;
  std::shared_ptr<const GgufReader> reader_;
  std::unique_ptr<AsyncReader> async_;
  SlotLayout layout_;
  SlotPlan plan_;
  std::vector<Shape> shapes_;  // [n_layers][kNumProjections]
  PageBuffer arena_;
  std::vector<std::byte*> memory_;  // of each slot
  std::vector<std::atomic<ExpertState>> states_;  // [n_layers * n_experts], devices left out
  std::vector<std::atomic<bool>> on_device_;  // [n_layers * n_experts]

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // a read ended, or slots came free
  std::shared_ptr<ExpertValues> values_;  // with policy "values"
  std::vector<std::string> policy_names_;  // of the cache's policies
  std::unique_ptr<PolicyPicker> picker_;  // with policy "auto"
  size_t wanted_policy_ = 0;
  ExpertCache cache_;
  std::vector<Fill> fills_;  // of each slot
  std::deque<int32_t> demanded_;  // slots whose reads have not begun
  std::vector<ExpertHint> hints_;  // the best one last
  int64_t n_resident_ = 0;
  int32_t n_flight_ = 0;  // experts being read
  int32_t max_flight_ = 1;
  bool stopping_ = false;
  std::vector<ExpertKey> fill_order_;
  size_t fill_next_ = 0;  // into fill_order_
  std::optional<ReadError> fill_error_;  // the first one of a read that nobody waited for
  int32_t n_fill_failures_ = 0;
  int32_t last_layer_ = -1;
  int64_t step_bytes_ = 0;  // of what this step has needed so far
  int64_t hint_bytes_left_ = kLeastHintBytes;  // that hints may still read in this step
  HintGate gate_;
  ReadMeter meter_;
  RunCostFit run_cost_;
  int64_t step_began_us_ = 0;
  int64_t step_wait_us_ = 0;  // counts_.wait_us then
  bool step_is_single_ = false;  // every layer so far had one row for each expert
  double step_seconds_ = 0.0;
  ExpertCosts device_costs_;  // of them those of a device
  PagerStats counts_;
  CountedUses counted_;
  ReuseMeter reuse_;
  int64_t n_steps_ = 0;
  std::unique_ptr<RoutingTrace> trace_;
  bool tracing_step_ = false;
  std::unique_ptr<PagerActivity> activity_;  // nullptr: nobody asks
};

}  // namespace expertree
