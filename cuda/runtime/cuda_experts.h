// Experts in slots of device memory: two streams, one that copies and one that computes, and the events between them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/expert_kernels.h"
#include "cuda/runtime/expert_buffers.h"

namespace expertree::cuda {

class CudaExperts final : public DeviceExperts {
 public:
  explicit CudaExperts(const DeviceExpertsPlan& plan);
  ~CudaExperts() override;
  CudaExperts(const CudaExperts&) = delete;
  CudaExperts& operator=(const CudaExperts&) = delete;

  // Bytes of device memory, slots included.
  static uint64_t device_bytes(const DeviceExpertsPlan& plan);

  std::byte* stage(int32_t layer) override;
  void copy(int32_t slot, int32_t layer) override;
  bool is_link_busy() override;
  void begin(int32_t layer, const float* inputs, int64_t n_inputs) override;
  void run(std::span<const DeviceRows> experts) override;
  const float* wait() override;
  double run_seconds() override { return run_seconds_; }
  double measure_link() override;
  bool recover() noexcept override;

 private:
  struct Slot {
    Event copied;
    bool is_waited_for = true;  // the compute stream has waited for its copy already
    int64_t last_run = 0;
  };
  struct Staging {
    Event copied;
    bool in_use = false;
  };

  void upload_parameters();
  void upload_tables(std::span<const DeviceRows> experts, BatchTables* on_device, int32_t* max_rows);
  void launch(const BatchTables& tables, int32_t n_active, int32_t max_rows, int64_t n_pairs);
  ProductInput input_for(DType dtype) const;

  DeviceExpertsPlan plan_;
  ExpertSizes sizes_;
  DeviceMemory device_memory_;
  PinnedMemory pinned_memory_;
  DeviceBuffers device_;
  PinnedBuffers pinned_;
  Stream copies_;
  Stream runs_;
  std::vector<Slot> slots_;
  Staging staging_[kStagingBuffers];
  int next_staging_ = 0;
  Event runs_done_;  // recorded behind each run
  Event batch_begun_, batch_done_;
  int64_t n_runs_ = 0;        // begun
  int64_t n_runs_ended_ = 0;  // known to have ended
  bool batch_pending_ = false;  // nobody has waited for it
  int32_t layer_ = -1;  // of the batch
  int64_t n_pairs_ = 0;
  uint64_t tables_used_ = 0;
  double run_seconds_ = 0.0;
};

}  // namespace expertree::cuda
