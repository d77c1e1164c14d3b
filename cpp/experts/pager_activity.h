// What a pager did, expert by expert, while a profile ran.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/experts/expert_cache.h"

namespace expertree {

struct PagerActivity {
  struct Read {
    ExpertKey key;
    FillReason reason;
    bool failed;
    uint64_t bytes;
    int64_t begin_ns;
    int64_t end_ns;
  };

  explicit PagerActivity(size_t n_keys = 0) : n_hits(n_keys), n_late(n_keys), n_misses(n_keys) {}

  // Of each expert, when a pass asked for it: in memory, being read, neither.
  std::vector<int64_t> n_hits;
  std::vector<int64_t> n_late;
  std::vector<int64_t> n_misses;
  std::vector<Read> reads;  // that ended, in that order
};

}  // namespace expertree
