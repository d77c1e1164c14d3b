// Experts in slots of device memory: two streams, one that copies and one that computes, and the events between them.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/expert_kernels.h"
#include "cuda/runtime/call_graphs.h"
#include "cuda/runtime/expert_buffers.h"

namespace expertree::cuda {

// What the graph of a run depends on; sizes with room.
struct ExpertRunShape {
  int32_t layer;
  int64_t n_inputs;  // 0: they are there from a run before
  int64_t n_active;
  int64_t max_rows;  // of an expert
  int64_t n_pairs;

  auto operator<=>(const ExpertRunShape&) const = default;
  static int64_t size() { return 1; }
};

// A layer's experts in a call of another stream, from a router's choice to what is added to the residual stream.
struct MixtureRun {
  int32_t layer;  // published
  const float* x;  // [n_rows][n_embd]
  const int32_t* chosen;  // [n_rows][n_used]
  const float* weights;  // [n_rows][n_used]
  int64_t n_rows;
  int32_t n_used;
  const int32_t* n_rows_device;  // [1]: rows that there are
  const float* beside;  // [n_rows][n_embd] or null
  float scale;
  float* y;  // [n_rows][n_embd], may be beside
};

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
  void publish(int32_t layer, std::span<const int32_t> slots) override;
  bool is_link_busy() override;
  void begin(int32_t layer, const float* inputs, int64_t n_inputs) override;
  void run(std::span<const DeviceRows> experts) override;
  const float* wait() override;
  double run_seconds() override { return run_seconds_; }
  double measure_link() override;
  bool recover() noexcept override;

  // Waits for a batch that nobody waited for: it uses the memory that mixtures use.
  void end_batch();
  // Puts nothing but kernels into the stream, one stream at a time.
  void enqueue_mixture(const MixtureRun& run, cudaStream_t stream);

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
  void wait_for_copies(std::span<const DeviceRows> experts);
  void fill_tables(std::span<const DeviceRows> experts, const BatchTables& tables) const;
  // Puts all that a run does into the stream, from its tables' copy to its outputs'. Its tables begin at `tables_at`, and
  // pairs before it are n_pairs_: a graph is captured where both are 0.
  void enqueue_run(const ExpertRunShape& shape, uint64_t tables_at);
  // What the layer's products read of x [n][n_embd].
  void quantize_inputs(int32_t layer, const float* x, int64_t n, cudaStream_t stream);
  ProductInput input_for(DType dtype, const float* x) const;
  void launch(const BatchTables& tables, const ExpertRunShape& shape, const float* x, cudaStream_t stream);

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
  int64_t n_inputs_ = 0;
  int64_t n_pairs_ = 0;  // of its runs so far
  uint64_t tables_used_ = 0;
  double run_seconds_ = 0.0;
  CallGraphs<ExpertRunShape> graphs_;
};

}  // namespace expertree::cuda
