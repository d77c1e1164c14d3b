// Where experts are at this moment: what the choice of draft nodes is priced by. Read-only.
#pragma once

#include <cstdint>

namespace expertree {

enum class ExpertState : uint8_t {
  kMissing,   // on disk
  kInFlight,  // being read
  kResident,  // in memory
  kOnDevice,  // in the memory of a GPU, wherever else it may be
};

class Residency {
 public:
  virtual ~Residency() = default;

  // Safe from any thread at any time; what it says may be out of date when it returns.
  virtual ExpertState state(int32_t moe_layer, int32_t expert) const = 0;
};

}  // namespace expertree
