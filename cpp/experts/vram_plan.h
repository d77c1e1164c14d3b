// How a model's experts share the memory of a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpp/backend/device.h"
#include "cpp/experts/expert_index.h"
#include "cpp/experts/slot_layout.h"

namespace expertree {

// Which experts that are not on the device are copied there to run.
enum class FetchRule : uint8_t {
  kByCost,    // those that take less time so
  kAlways,    // for tests: all that find room
  kNever,     // none; what runs on the CPU may be copied for later
  kShuffled,  // for tests: some
};

struct VramOptions {
  uint64_t budget_bytes = 0;  // of device memory, at most; 0: no device is asked for
  bool automatic = false;     // less of it where less is free, and none without a device
  std::string backend = "cuda";
  FetchRule fetch = FetchRule::kByCost;
  int64_t max_pairs = 0;      // (expert, row) pairs of a batch on the device; 0: chosen
  bool experts_only = false;  // for tests: dense matrices stay on the CPU
  // Runs of few rows for each layer that must have been timed before a layer may run as a whole, which is not timed.
  int64_t measured_runs = 16;
};

// What the device must know of a model beside its expert index.
struct VramModel {
  struct Layer {
    const float* biases[kExpertMatrices] = {};  // [n_experts][rows]; nullptr: none. They outlive the tier
  };
  std::vector<Layer> layers;  // of the expert index
  GatedUnit unit = GatedUnit::kSwiGlu;
  int64_t n_embd = 0;
  int64_t n_used = 0;
  int64_t max_rows = 0;       // of a batch
  bool weighs_input = false;  // inputs are one row for each (row, rank)
};

struct VramPlan {
  DeviceExpertsPlan device;
  std::vector<int32_t> class_of_layer;  // [n_layers]; -1: the device does not run the layer's formats
  uint64_t fixed_bytes = 0;             // beside slots
  uint64_t least_bytes = 0;             // a slot of each class
  uint64_t all_bytes = 0;               // a slot for every expert that the device can run
  uint64_t bytes = 0;                   // of this plan, at most the budget; 0: no layer can run there
};

// The layers' formats and sizes; no slots yet.
VramPlan vram_shapes(const Device& device, const ExpertIndex& index, const VramModel& model, int64_t max_pairs);

// Gives it slots. Throws kOutOfMemory, naming the least that works.
void give_slots(VramPlan* plan, uint64_t budget_bytes);

}  // namespace expertree
