// The API's device queries, errors, and launches.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "cuda/emulation/control.h"
#include "cuda/emulation/launch.h"
#include "cuda/emulation/machine.h"
#include "cuda/emulation/sanitizer_hooks.h"
#include "cuda/emulation/streams.h"

namespace emu {

const KernelObserver* g_observer;

namespace {

// The i-th block to run. Random order is an affine permutation.
class BlockOrder {
 public:
  explicit BlockOrder(uint64_t n) : n_(n) {
    if (config().order != Order::kRandom || n < 2) return;
    offset_ = draw() % n;
    do {
      stride_ = draw() % n;
    } while (std::gcd(stride_, n) != 1);
  }
  uint64_t operator()(uint64_t i) const {
    return config().order == Order::kReverse ? n_ - 1 - i : (stride_ * i + offset_) % n_;
  }

 private:
  uint64_t n_, offset_ = 0, stride_ = 1;
};

void run_grid(const KernelCall& call, dim3 grid, dim3 block, size_t smem_bytes) {
  const uint64_t n = uint64_t{grid.x} * grid.y * grid.z;
  const BlockOrder order(n);
  release(&g_running.start_token);
  if (g_observer) g_observer->begins(call.kernel, grid);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t b = order(i);
    const uint3 index{static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                      static_cast<unsigned>(b / grid.x / grid.y)};
    const bool fine = run_block(call.run, call.kernel_and_arguments, index, grid, block, smem_bytes);
    if (g_observer) g_observer->block_ends();
    if (fine) continue;
    const Lock lock(device().mutex);
    device().sticky = cudaErrorLaunchFailure;
    break;
  }
  if (g_observer) g_observer->ends();
  acquire(&g_running.end_token);
}

bool within_limits(dim3 grid, dim3 block) {
  constexpr unsigned kMaxGridYZ = 65535, kMaxBlockZ = 64;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0) return false;
  return grid.x <= 0x7fffffffu && grid.y <= kMaxGridYZ && grid.z <= kMaxGridYZ && block.z <= kMaxBlockZ &&
         block.x <= kMaxThreads && block.y <= kMaxThreads && block.x * block.y * block.z <= kMaxThreads;
}

}  // namespace

cudaError_t launch(const KernelCall& call, dim3 grid, dim3 block, size_t smem_bytes, cudaStream_t stream) {
  const auto destroy = [destroy = call.destroy](void* bound) {
    Unwatched unwatched;  // the threads of a kernel that failed have not ended
    destroy(bound);
  };
  const std::shared_ptr<void> owner(call.kernel_and_arguments, destroy);
  EMU_BEGIN("cudaLaunchKernel");
  if (!within_limits(grid, block)) return failed(cudaErrorInvalidConfiguration);
  if (smem_bytes > config().max_dynamic_smem) return failed(cudaErrorInvalidValue);
  auto step = [=, call = call] {
    (void)owner;  // the arguments live as long as the work that uses them
    run_grid(call, grid, block, smem_bytes);
    return true;
  };
  return submit(stream, "kernel", [step] { return Step(step); }, lock);
}

}  // namespace emu

using namespace emu;

cudaError_t cudaDriverGetVersion(int* version) {
  EMU_BEGIN("cudaDriverGetVersion");
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  EMU_BEGIN("cudaRuntimeGetVersion");
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  EMU_BEGIN("cudaGetDeviceCount");
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  EMU_BEGIN("cudaSetDevice");
  return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  EMU_BEGIN("cudaGetDevice");
  *device = 0;
  return cudaSuccess;
}

namespace {

constexpr int kMajor = 8, kMinor = 6, kMultiprocessors = 4, kCopyEngines = 2;

}  // namespace

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  EMU_BEGIN("cudaGetDeviceProperties");
  if (device != 0) return failed(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated CUDA device");
  properties->totalGlobalMem = config().device_mem;
  properties->sharedMemPerBlock = config().max_dynamic_smem;
  properties->major = kMajor;
  properties->minor = kMinor;
  properties->multiProcessorCount = kMultiprocessors;
  properties->asyncEngineCount = kCopyEngines;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  EMU_BEGIN("cudaDeviceGetAttribute");
  if (device != 0) return failed(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(config().max_dynamic_smem); break;
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
    case cudaDevAttrAsyncEngineCount: *value = kCopyEngines; break;
    case cudaDevAttrComputeCapabilityMajor: *value = kMajor; break;
    case cudaDevAttrComputeCapabilityMinor: *value = kMinor; break;
    default: return failed(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const Lock lock(emu::device().mutex);
  const cudaError_t error = emu::device().sticky ? emu::device().sticky : emu::device().last;
  emu::device().last = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const Lock lock(emu::device().mutex);
  return emu::device().sticky ? emu::device().sticky : emu::device().last;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define EMU_NAME(NAME) \
  case NAME: return #NAME
    EMU_NAME(cudaSuccess);
    EMU_NAME(cudaErrorInvalidValue);
    EMU_NAME(cudaErrorMemoryAllocation);
    EMU_NAME(cudaErrorInvalidConfiguration);
    EMU_NAME(cudaErrorInsufficientDriver);
    EMU_NAME(cudaErrorNoDevice);
    EMU_NAME(cudaErrorInvalidDevice);
    EMU_NAME(cudaErrorInvalidResourceHandle);
    EMU_NAME(cudaErrorNotReady);
    EMU_NAME(cudaErrorIllegalAddress);
    EMU_NAME(cudaErrorHostMemoryAlreadyRegistered);
    EMU_NAME(cudaErrorHostMemoryNotRegistered);
    EMU_NAME(cudaErrorLaunchFailure);
    EMU_NAME(cudaErrorNotSupported);
    EMU_NAME(cudaErrorStreamCaptureUnsupported);
    EMU_NAME(cudaErrorStreamCaptureInvalidated);
    EMU_NAME(cudaErrorStreamCaptureMerge);
    EMU_NAME(cudaErrorStreamCaptureUnmatched);
    EMU_NAME(cudaErrorStreamCaptureUnjoined);
    EMU_NAME(cudaErrorStreamCaptureIsolation);
    EMU_NAME(cudaErrorStreamCaptureImplicit);
    EMU_NAME(cudaErrorCapturedEvent);
    EMU_NAME(cudaErrorStreamCaptureWrongThread);
    EMU_NAME(cudaErrorUnknown);
#undef EMU_NAME
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
