// The waits of the runtime, each of which the test build can leave out: a test shows that every one is needed.
#pragma once

namespace expertree::cuda {

enum class Wait {
  kNone,
  kCopied,    // a run waits for the copy of its expert
  kSlotFree,  // a copy waits for the runs that read what was in its slot
  kStaging,   // the host waits before it writes to a staging buffer again
  kInputs,    // the host waits before it writes the next batch's inputs
  kOutputs,   // the host waits before it reads outputs
  kLoaded,        // the host waits before it writes to a loading buffer of dense matrices again
  kDenseInputs,   // as kInputs, of dense products
  kDenseOutputs,  // as kOutputs
  kPublished,  // the host waits for a layer's experts, and the table that says where they are, before it calls them whole
  kBatch,  // the host waits for a batch that was given up before the same memory serves a mixture
};

#if defined(EXPERTREE_CUDA_EMULATED)
bool is_kept(Wait wait);
#else
constexpr bool is_kept(Wait) { return true; }
#endif

}  // namespace expertree::cuda
