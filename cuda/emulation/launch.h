// Shared memory and launches, as gpu.h describes them.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda/emulation/runtime_api.h"
#include "cuda/emulation/thread_context.h"

// Each array of a block is an allocation of its own and of the exact size, so that sanitizers see its ends.
#define GPU_SHARED(T, name, N)          \
  static const char name##_emu_key = 0; \
  T(&name)                              \
  [N] = *static_cast<T(*)[N]>(::emu::shared_array(&name##_emu_key, sizeof(T) * (N), alignof(T) < 16 ? 16 : alignof(T)))
#define GPU_DYN_SHARED(T, name) T* name = static_cast<T*>(::emu::dynamic_shared())

namespace emu {

// A kernel with its arguments, copied when it is launched.
struct KernelCall {
  void* kernel_and_arguments;
  void (*run)(void*);  // by every thread of the grid
  void (*destroy)(void*);
  const void* kernel;
};

cudaError_t launch(const KernelCall& call, dim3 grid, dim3 block, size_t smem_bytes, cudaStream_t stream);

template <class... P>
struct BoundKernel {
  void (*kernel)(P...);
  std::tuple<std::decay_t<P>...> arguments;
  static void run(void* self) {
    auto* bound = static_cast<BoundKernel*>(self);
    std::apply(bound->kernel, bound->arguments);
  }
  static void destroy(void* self) { delete static_cast<BoundKernel*>(self); }
};

}  // namespace emu

template <class... P, class... A>
cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem_bytes, cudaStream_t stream,
                       A&&... arguments) {
  using Bound = emu::BoundKernel<P...>;
  void* bound = new Bound{kernel, {std::forward<A>(arguments)...}};
  return emu::launch({bound, Bound::run, Bound::destroy, reinterpret_cast<const void*>(kernel)}, grid, block,
                     smem_bytes, stream);
}
