// What would be in memory had every token been decoded by itself: what drafting is compared with.
#pragma once

#include <cstdint>
#include <span>

#include "cpp/experts/expert_cache.h"
#include "cpp/experts/expert_pager.h"

namespace expertree {

// A pass over a draft reads experts for rows that are given up. Some of them are used later, and plain decoding would
// have to read them then; others push out what it would still have. So the experts that the kept rows of a pass find
// missing are not those that plain decoding would miss; this bookkeeping, with the pager's slots and the policy that is on,
// tells how many these are. Experts on a device count as there. Not thread-safe.
class PlainCache {
 public:
  // Begins with what is in memory now.
  explicit PlainCache(const ExpertPager& pager);

  // Experts that would have been read for these rows, one after the other. ids: [n_layers][n_rows][n_used].
  int64_t decode(std::span<const int32_t> ids, int64_t n_rows, std::span<const int32_t> rows);

 private:
  const ExpertPager& pager_;
  int32_t n_layers_;
  ExpertCache cache_;
};

}  // namespace expertree
