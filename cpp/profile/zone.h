// The closed list of places where a step's time goes.
#pragma once

#include <cstdint>

namespace expertree {

// The order is that of ZONES in python/expertree/profile/tables.py, whose last zone, time outside the core, is none here.
enum class Zone : uint8_t {
  kDraft,      // proposing a tree, learning from what was accepted
  kPredict,    // which experts will be needed
  kSelect,     // which nodes to verify
  kAttention,  // or what a layer has in its place, with norm and residual sum
  kRouter,
  kExperts,  // running and summing them
  kDense,    // feed-forward parts that are no routed experts
  kHead,
  kOther,   // what has no zone of its own
  kWait,    // asking the pager, and waiting for reads
  kSample,  // verifying the tree included
  kCommit,
};
constexpr int kNumZones = 12;

// In the order of KINDS there.
enum class StepKind : uint8_t { kPrefill, kDecode, kSpeculate, kEvaluate };
constexpr int kNumStepKinds = 4;

}  // namespace expertree
