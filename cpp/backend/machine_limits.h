// What this machine can do at most, measured: the yardstick of every benchmark.
#pragma once

#include "cpp/backend/cpu_backend.h"
#include "cpp/base/memory.h"

namespace expertree {

struct MachineLimits {
  double read_gb_per_s;  // all threads reading huge pages in address order
  double int8_gops;      // all threads multiplying int8 in registers; 0 without a probe
};

class LimitProbe {
 public:
  // Takes `buffer_bytes` of memory, larger than every cache, and touches it.
  explicit LimitProbe(CpuBackend& backend, uint64_t buffer_bytes = uint64_t{512} << 20);

  // Takes about `seconds`; the median of its parts. Run it beside each measurement: shared machines drift.
  MachineLimits measure(double seconds);

 private:
  double read_once();
  double int8_once();

  CpuBackend& backend_;
  PageBuffer buffer_;
};

}  // namespace expertree
