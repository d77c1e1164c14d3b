// The API's memory functions: allocation, copies, memset.
#include <algorithm>
#include <cstring>

#include "cuda/emulation/control.h"
#include "cuda/emulation/memory.h"
#include "cuda/emulation/sanitizer_hooks.h"
#include "cuda/emulation/streams.h"

namespace emu {

namespace {

constexpr int kInFlight = 0xEE;      // what a destination reads as while a copy is under way
constexpr size_t kSplitBytes = 64;  // larger copies take three steps in shuffle mode

bool to_device(cudaMemcpyKind kind) { return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice; }
bool from_device(cudaMemcpyKind kind) { return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice; }

cudaMemcpyKind resolve_kind(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind) {
  if (kind != cudaMemcpyDefault) return kind;
  const bool to_dev = inside(to, size_bytes, true), from_dev = inside(from, size_bytes, true);
  return to_dev ? (from_dev ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                : (from_dev ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
}

Step copy_steps(void* to, const void* from, size_t size_bytes) {
  return [=, offset = size_t{0}]() mutable {
    const bool split = config().streams == StreamMode::kShuffle && size_bytes > kSplitBytes;
    if (split && offset == 0) {
      Unwatched unwatched;
      std::memset(to, kInFlight, size_bytes);
    }
    const size_t n = split ? std::min(size_bytes - offset, size_bytes / 3 + 1) : size_bytes;
    std::memcpy(static_cast<char*>(to) + offset, static_cast<const char*>(from) + offset, n);  // sanitizers see it
    offset += n;
    return offset >= size_bytes;
  };
}

cudaError_t copy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind given, Stream* stream, bool async,
                 Lock& lock) {
  const cudaMemcpyKind kind = resolve_kind(to, from, size_bytes, given);
  if (size_bytes == 0) return cudaSuccess;
  if ((to_device(kind) && !inside(to, size_bytes, true)) || (from_device(kind) && !inside(from, size_bytes, true))) {
    return misuse(cudaErrorInvalidValue, "a copy whose device side is not inside one device allocation");
  }
  // On a GPU this is slow but works outside a capture; here it is a fault, for ours are meant to overlap.
  if (async && ((!to_device(kind) && !inside(to, size_bytes, false)) ||
                (!from_device(kind) && !inside(from, size_bytes, false)))) {
    return misuse(cudaErrorInvalidValue, "cudaMemcpyAsync with host memory that is not pinned: it would not overlap");
  }
  const auto begin = [=] {
    if (kind == cudaMemcpyHostToDevice) count("bytes to device", size_bytes);
    if (kind == cudaMemcpyDeviceToHost) count("bytes to host", size_bytes);
    return copy_steps(to, from, size_bytes);
  };
  return submit(stream, "copy", begin, lock);
}

cudaError_t set_bytes(void* to, int value, size_t size_bytes, Stream* stream, Lock& lock) {
  if (size_bytes == 0) return cudaSuccess;
  if (!inside(to, size_bytes, true)) return misuse(cudaErrorInvalidValue, "cudaMemset outside a device allocation");
  auto step = [=] {
    std::memset(to, value, size_bytes);
    return true;
  };
  return submit(stream, "memset", [=] { return Step(step); }, lock);
}

cudaError_t finish_all(Lock& lock) {
  const std::vector<Stream*> streams = device().streams;
  for (Stream* stream : streams) {
    if (const cudaError_t error = finish(stream, lock)) return error;
    acquire(&stream->done_token);
  }
  acquire(&device().ended_token);
  return cudaSuccess;
}

// cudaFree and its like wait for the device first.
cudaError_t free_waiting(const char* name, void* p, MemoryKind kind) {
  EMU_BEGIN(name);
  if (const cudaError_t error = forbid_while_capturing(name)) return error;
  if (const cudaError_t error = finish_all(lock)) return error;
  return give_back(p, kind);
}

}  // namespace

}  // namespace emu

using namespace emu;

cudaError_t cudaMalloc(void** device, size_t size_bytes) {
  EMU_BEGIN("cudaMalloc");
  if (const cudaError_t error = forbid_while_capturing("cudaMalloc")) return error;
  return allocate(device, size_bytes, MemoryKind::kDevice);
}

cudaError_t cudaFree(void* device) { return free_waiting("cudaFree", device, MemoryKind::kDevice); }

cudaError_t cudaMallocHost(void** host, size_t size_bytes) {
  EMU_BEGIN("cudaMallocHost");
  if (const cudaError_t error = forbid_while_capturing("cudaMallocHost")) return error;
  return allocate(host, size_bytes, MemoryKind::kPinned);
}

cudaError_t cudaHostAlloc(void** host, size_t size_bytes, unsigned) {
  EMU_BEGIN("cudaHostAlloc");
  if (const cudaError_t error = forbid_while_capturing("cudaHostAlloc")) return error;
  return allocate(host, size_bytes, MemoryKind::kPinned);
}

cudaError_t cudaFreeHost(void* host) { return free_waiting("cudaFreeHost", host, MemoryKind::kPinned); }

cudaError_t cudaHostRegister(void* host, size_t size_bytes, unsigned) {
  EMU_BEGIN("cudaHostRegister");
  if (const cudaError_t error = forbid_while_capturing("cudaHostRegister")) return error;
  return register_host(host, size_bytes);
}

cudaError_t cudaHostUnregister(void* host) { return free_waiting("cudaHostUnregister", host, MemoryKind::kRegistered); }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  EMU_BEGIN("cudaMemGetInfo");
  *total_bytes = config().device_mem;
  *free_bytes = *total_bytes - std::min(*total_bytes, used_device_bytes());
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  EMU_BEGIN("cudaMemcpyAsync");
  return copy(to, from, size_bytes, kind, stream, true, lock);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind) {
  EMU_BEGIN("cudaMemcpy");
  if (const cudaError_t error = forbid_while_capturing("cudaMemcpy")) return error;
  if (const cudaError_t error = copy(to, from, size_bytes, kind, nullptr, false, lock)) return error;
  Stream* legacy = resolve(nullptr);
  if (const cudaError_t error = finish(legacy, lock)) return error;
  acquire(&legacy->done_token);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream) {
  EMU_BEGIN("cudaMemsetAsync");
  return set_bytes(to, value, size_bytes, stream, lock);
}

cudaError_t cudaMemset(void* to, int value, size_t size_bytes) {
  EMU_BEGIN("cudaMemset");
  return set_bytes(to, value, size_bytes, nullptr, lock);
}

cudaError_t cudaDeviceSynchronize() {
  EMU_BEGIN("cudaDeviceSynchronize");
  if (const cudaError_t error = forbid_while_capturing("cudaDeviceSynchronize")) return error;
  return finish_all(lock);
}
