// Replays a recorded trace through the cache and a policy, without reading anything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpp/experts/cache_policy.h"
#include "cpp/experts/expert_cache.h"
#include "cpp/experts/routing_trace.h"

namespace expertree {

struct SimulationResult {
  int64_t n_steps = 0;
  int64_t n_uses = 0;                // experts that steps needed
  int64_t n_hits = 0;                // that were in memory
  std::vector<int64_t> n_misses;     // [n_layers]
  std::vector<int32_t> step_misses;  // [n_steps][n_layers]
};

// One layer of a step that needs these experts (each once); cache->begin_step() comes before a step's first layer, and
// what is counted is told beside it.
// Returns those that were not in memory, in order; they are now.
std::vector<int32_t> simulate_layer(ExpertCache* cache, int32_t layer, std::span<const int32_t> experts);

// Steps before `n_warmup_steps` run but do not count. Throws what make_policy throws.
SimulationResult simulate_cache(const ExpertCache::Shape& shape, const std::string& policy,
                                const PolicyContext& context, const RoutingTrace& trace, int64_t n_warmup_steps);

}  // namespace expertree
