#include "cpp/experts/plain_cache.h"

#include <algorithm>
#include <iterator>

#include "cpp/experts/cache_simulation.h"

namespace expertree {
namespace {

std::vector<std::unique_ptr<CachePolicy>> policy_of(const ExpertPager& pager) {
  std::vector<std::unique_ptr<CachePolicy>> policies;
  policies.push_back(make_policy(pager.stats().policy, {pager.layout().n_layers(), pager.layout().n_experts(),
                                                        pager.profile(), nullptr, pager.values()}));
  return policies;
}

}  // namespace

PlainCache::PlainCache(const ExpertPager& pager)
    : pager_(pager), n_layers_(pager.layout().n_layers()), cache_(pager.cache_shape(), policy_of(pager)) {
  for (int32_t layer = 0; layer < n_layers_; ++layer) {
    for (int32_t expert = 0; expert < pager.layout().n_experts(); ++expert) {
      if (!pager.is_in_ram(cache_.key(layer, expert))) continue;
      const int32_t slot = cache_.take(cache_.key(layer, expert), FillReason::kBackground).slot;
      if (slot >= 0) cache_.filled(slot);
    }
  }
}

int64_t PlainCache::decode(std::span<const int32_t> ids, int64_t n_rows, std::span<const int32_t> rows) {
  const int64_t n_used = std::ssize(ids) / (n_layers_ * n_rows);
  std::vector<int32_t> experts;
  int64_t n_read = 0;
  for (const int32_t row : rows) {
    cache_.begin_step();
    for (int32_t layer = 0; layer < n_layers_; ++layer) {
      const auto used = ids.subspan(static_cast<size_t>((layer * n_rows + row) * n_used), static_cast<size_t>(n_used));
      experts.clear();
      std::ranges::copy_if(used, std::back_inserter(experts),
                           [&](int32_t expert) { return pager_.state(layer, expert) != ExpertState::kOnDevice; });
      cache_.count(layer, used, 1);
      n_read += std::ssize(simulate_layer(&cache_, layer, experts));
    }
  }
  return n_read;
}

}  // namespace expertree
