// Which of a layer's experts that are not on the device are copied there and run there, and which run where they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/experts/cost_model.h"

namespace expertree {

struct SplitLayer {
  double copy_seconds = 0.0;   // of one expert over the link
  double stage_seconds = 0.0;  // and what that costs the CPU
  int64_t n_device_experts = 0;  // that are on the device already
  int64_t n_device_rows = 0;     // and their rows
  int64_t most = 0;              // experts that may be copied
};

// Seconds of the layer when the experts of `copied` rows are copied and those of `kept` rows run on the CPU: both sides
// work side by side, and the device runs what it has while copies come.
double split_seconds(const ExpertCosts& costs, const SplitLayer& layer, std::span<const int64_t> copied,
                     std::span<const int64_t> kept);

// The indices of the experts to be copied, n_rows[i] rows each. An expert with many rows costs the CPU most and the link no
// more than another, so those go first; how many, such that the layer takes least, the fewest of equal choices.
std::vector<int32_t> split_experts(const ExpertCosts& costs, const SplitLayer& layer, std::span<const int64_t> n_rows);

}  // namespace expertree
