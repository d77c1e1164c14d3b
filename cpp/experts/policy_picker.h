// Chooses among policies by replaying what the session itself did of late.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/experts/cache_simulation.h"

namespace expertree {

class PolicyPicker {
 public:
  // `names`: the policies to choose from; `shape`: of the cache that they serve.
  PolicyPicker(std::vector<std::string> names, const ExpertCache::Shape& shape, std::vector<float> profile);

  // What a step's next layer uses; layers come in order.
  void record(int32_t layer, std::span<const int32_t> experts);

  // At a step's beginning: the index of the policy to go on with. Now and then replays the recent trace (some
  // milliseconds); `active` stays unless another one is clearly better.
  size_t pick(size_t active);

 private:
  std::vector<std::string> names_;
  ExpertCache::Shape shape_;          // of the sampled layers
  std::vector<int32_t> sampled_;      // their numbers, ascending
  std::vector<float> profile_;        // of them
  std::unique_ptr<RoutingTrace> trace_;
  size_t next_layer_ = 0;             // index into sampled_ of the layer that the trace waits for
  int64_t n_steps_wanted_;
};

}  // namespace expertree
