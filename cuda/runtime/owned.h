// Owners of what the runtime hands out. Move-only; freeing ignores errors, as there is nobody to tell.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/runtime/call.h"

namespace expertree::cuda {

// One resource: Make fills it in, Free gives it back.
template <typename Handle, cudaError_t (*Free)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() { reset(); }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle get() const { return handle_; }
  Handle* receive() { return &handle_; }

 private:
  void reset() {
    if (handle_ != Handle{}) static_cast<void>(Free(std::exchange(handle_, Handle{})));
  }
  Handle handle_{};
};

inline cudaError_t free_device(void* p) { return cudaFree(p); }
inline cudaError_t free_pinned(void* p) { return cudaFreeHost(p); }
inline cudaError_t destroy_stream(cudaStream_t s) { return cudaStreamDestroy(s); }
inline cudaError_t destroy_event(cudaEvent_t e) { return cudaEventDestroy(e); }
inline cudaError_t destroy_graph(cudaGraph_t g) { return cudaGraphDestroy(g); }
inline cudaError_t destroy_graph_exec(cudaGraphExec_t g) { return cudaGraphExecDestroy(g); }

using DeviceMemory = Owned<void*, free_device>;
using PinnedMemory = Owned<void*, free_pinned>;
using Stream = Owned<cudaStream_t, destroy_stream>;
using Event = Owned<cudaEvent_t, destroy_event>;
using Graph = Owned<cudaGraph_t, destroy_graph>;
using GraphExec = Owned<cudaGraphExec_t, destroy_graph_exec>;

inline DeviceMemory allocate_device(uint64_t size_bytes) {
  DeviceMemory memory;
  CUDA_CHECK(cudaMalloc(memory.receive(), size_bytes));
  return memory;
}
inline PinnedMemory allocate_pinned(uint64_t size_bytes) {
  PinnedMemory memory;
  CUDA_CHECK(cudaMallocHost(memory.receive(), size_bytes));
  return memory;
}
// Independent of the legacy default stream.
inline Stream make_stream() {
  Stream stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(stream.receive(), cudaStreamNonBlocking));
  return stream;
}
inline Event make_event(bool timed = false) {
  Event event;
  CUDA_CHECK(cudaEventCreateWithFlags(event.receive(), timed ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}

// Hands out pieces of one block, each from a multiple of 256 bytes on. Over a null block it measures what they take.
class Carver {
 public:
  explicit Carver(void* block) : block_(static_cast<std::byte*>(block)) {}

  template <typename T = std::byte>
  T* take(int64_t n) {
    std::byte* piece = block_ == nullptr ? nullptr : block_ + used_;
    used_ += (static_cast<uint64_t>(n) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(piece);
  }
  uint64_t used_bytes() const { return used_; }

 private:
  std::byte* block_;
  uint64_t used_ = 0;
};

}  // namespace expertree::cuda
