#include "cpp/experts/cache_simulation.h"

#include "cpp/base/error.h"

namespace expertree {

// As a lease does it: resident experts first, then the missing ones, in waves when there are more than slots.
std::vector<int32_t> simulate_layer(ExpertCache* cache, int32_t layer, std::span<const int32_t> experts) {
  std::vector<int32_t> pinned;
  std::vector<int32_t> missing;
  for (const int32_t expert : experts) {
    const ExpertKey key = cache->key(layer, expert);
    cache->use(key);
    const int32_t slot = cache->find(key);
    if (slot < 0) {
      missing.push_back(expert);
      continue;
    }
    cache->pin(slot);
    pinned.push_back(slot);
  }
  const auto release = [&] {
    for (const int32_t slot : pinned) cache->unpin(slot);
    pinned.clear();
  };
  for (const int32_t expert : missing) {
    const ExpertKey key = cache->key(layer, expert);
    int32_t slot = cache->take(key, FillReason::kDemand).slot;
    if (slot < 0) {
      release();
      slot = cache->take(key, FillReason::kDemand).slot;
    }
    cache->filled(slot);
    cache->pin(slot);
    pinned.push_back(slot);
  }
  release();
  return missing;
}

SimulationResult simulate_cache(const ExpertCache::Shape& shape, const std::string& policy,
                                const PolicyContext& context, const RoutingTrace& trace, int64_t n_warmup_steps) {
  ET_CHECK(trace.n_layers() == shape.n_layers && trace.n_experts() == shape.n_experts);
  std::vector<std::unique_ptr<CachePolicy>> policies;
  policies.push_back(make_policy(policy, context));
  ExpertCache cache(shape, std::move(policies));
  SimulationResult result;
  result.n_misses.assign(static_cast<size_t>(shape.n_layers), 0);
  for (int64_t step = 0; step < trace.n_steps(); ++step) {
    cache.begin_step();
    const bool counts = step >= n_warmup_steps;
    result.n_steps += counts;
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const std::span<const int32_t> experts = trace.experts(step, layer);
      cache.count(layer, experts, 1);
      const auto n_missing = static_cast<int64_t>(simulate_layer(&cache, layer, experts).size());
      if (!counts) continue;
      result.n_uses += static_cast<int64_t>(experts.size());
      result.n_hits += static_cast<int64_t>(experts.size()) - n_missing;
      result.n_misses[static_cast<size_t>(layer)] += n_missing;
      result.step_misses.push_back(static_cast<int32_t>(n_missing));
    }
  }
  return result;
}

}  // namespace expertree
