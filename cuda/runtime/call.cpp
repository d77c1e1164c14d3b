#include "cuda/runtime/call.h"

#include <string>

#include "cpp/base/error.h"

namespace expertree::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const std::string text(call);
  const std::string name = text.substr(0, text.find('('));
  const std::string message = "the GPU failed: " + name + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) {
    throw Error(ErrorCode::kOutOfMemory, message + "; close what else uses it, or give a smaller --vram");
  }
  throw Error(ErrorCode::kDevice,
              message + "; try again, and without --vram if it goes on: expertree then runs on the CPU");
}

}  // namespace expertree::cuda
