// The only header that kernels include: one source for nvcc and for the emulation on a CPU. It brings threadIdx and the
// rest of the CUDA C++ names that kernels may use, launches, shared memory and the wrappers of wrap.cuh. What it leaves
// out on purpose, and the rules that tools/check_kernels.py checks: cuda/README.md.
#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

// An array of N elements in the block's shared memory. Unwritten elements are undefined.
#define GPU_SHARED(T, name, N) __shared__ __align__(16) T name[N]
// The launch's dynamic shared memory, aligned to 128 bytes, as a T*.
#define GPU_DYN_SHARED(T, name)                                      \
  extern __shared__ __align__(128) unsigned char gpu_dynamic_smem[]; \
  T* name = reinterpret_cast<T*>(gpu_dynamic_smem)
#define GPU_NOINLINE __noinline__

// Launches kernel<<<grid, block, smem_bytes, stream>>>(arguments...), types checked; the error is this launch's own.
template <class... P, class... A>
cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem_bytes, cudaStream_t stream,
                       A&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<A>(arguments)...);
}
#else
#include "cuda/emulation/cuda_emu.h"
#endif

#include "cuda/gpu/wrap.cuh"
