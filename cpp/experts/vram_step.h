// What one layer of one step does on a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/experts/vram_tier.h"

namespace expertree {

// Experts that are on the device stay there until it ends.
class VramStep {
 public:
  // The experts that the layer uses, each once, with n_rows[i] rows each.
  VramStep(VramTier& tier, int32_t layer, std::span<const int32_t> experts, std::span<const int64_t> n_rows);
  // Gives up a batch that nobody waited for.
  ~VramStep();
  VramStep(const VramStep&) = delete;
  VramStep& operator=(const VramStep&) = delete;

  // Experts that are on the device.
  std::span<const int32_t> hits() const { return hits_; }
  // The expert lies in RAM, held by a lease: copies it to the device if it is to run there.
  bool fetch(int32_t expert);
  // The expert has run on the CPU and is held by a lease: copies it to the device if it is worth it and nobody waits.
  void offer(int32_t expert);

  // Begins a batch, or goes on with it: inputs [n_inputs][n_embd] of the layer.
  void run(const float* inputs, int64_t n_inputs, std::span<const DeviceRows> experts);
  bool has_room(int64_t n_rows) const { return n_pairs_ + n_rows <= tier_.max_pairs(); }
  int32_t slot_of(int32_t expert) const { return tier_.cache_.find(tier_.cache_.key(layer_, expert)); }
  // All hits have run on so many rows together, in a call of blocks.
  void ran_whole(int64_t n_rows);
  // The outputs of what was run, in order, [n_pairs][n_embd], and there until the next run().
  const float* wait();

 private:
  VramTier& tier_;
  int32_t layer_;
  int64_t generation_;
  std::vector<int32_t> hits_;
  std::vector<int32_t> wanted_;  // to be copied
  std::vector<int32_t> pinned_;  // slots
  bool is_open_ = false;         // a batch is
  bool fetched_ = false;         // it has experts that were copied for it
  int64_t n_experts_ = 0;        // of the batch
  int64_t n_pairs_ = 0;
};

}  // namespace expertree
