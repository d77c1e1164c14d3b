// Of the test build alone.
#include "cuda/runtime/wait_switch.h"

#if defined(EXPERTREE_CUDA_EMULATED)
#include <atomic>

namespace expertree::cuda {
namespace {

std::atomic<Wait> dropped{Wait::kNone};

}  // namespace

bool is_kept(Wait wait) { return dropped.load() != wait; }

}  // namespace expertree::cuda

// The number of a Wait; 0 keeps them all.
extern "C" __attribute__((visibility("default"))) void expertree_drop_wait(int wait) {
  expertree::cuda::dropped.store(static_cast<expertree::cuda::Wait>(wait));
}
#endif
