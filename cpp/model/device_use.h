// What a model keeps on a device, and where its parts are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpp/backend/device.h"
#include "cpp/experts/vram_plan.h"
#include "cpp/model/dense_parts.h"

namespace expertree {

struct PlacedPart {
  std::string name;
  bool on_device = false;
  int64_t n = 0;  // layers, or experts
  int64_t n_all = 0;  // of the model
  uint64_t bytes = 0;
  std::string note;  // why it is not on the device; ""
};

struct DeviceUse {
  DeviceInfo device;  // as it was at the beginning
  uint64_t budget_bytes = 0;  // taken there
  uint64_t dense_bytes = 0;  // of them by dense parts and what their products take
  uint64_t all_bytes = 0;  // that the whole model could use
  uint64_t least_bytes = 0;  // the smallest budget that works
  std::vector<PlacedPart> parts;
};

// A row for each kind of part and each place where some of it is. Experts on the device: those that find room there.
std::vector<PlacedPart> placed_parts(const Device& device, const DenseModel& model, std::span<const DensePart> parts,
                                     const DensePlan& dense, const VramPlan& experts);

}  // namespace expertree
