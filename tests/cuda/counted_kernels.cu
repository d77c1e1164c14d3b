// Kernels whose bytes can be reckoned by hand, some of them wasteful (test_byte_counts.py).
#include <cstring>

#include "cuda/gpu/gpu.h"

namespace {

constexpr int kThreads = 64;

__device__ __forceinline__ int element() {
  return static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
}

// Every block reads everything.
__global__ void __launch_bounds__(kThreads) read_by_all(const float* from, float* to, int n) {
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) sum = __fadd_rn(sum, from[i]);
  to[element()] = sum;
}

// A thread reads the first float of a sector of its own.
__global__ void __launch_bounds__(kThreads) read_scattered(const float* from, float* to, int) {
  to[element()] = from[8 * element()];
}

// A warp's lanes read the same float, one float after the other.
__global__ void __launch_bounds__(kThreads) read_one_by_one(const float* from, float* to, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum = __fadd_rn(sum, from[i]);
  to[element()] = sum;
}

// Four floats to a thread, through shared memory.
__global__ void __launch_bounds__(kThreads) copy_asynchronously(const float* from, float* to, int) {
  GPU_SHARED(float, s, 4 * kThreads);
  float* mine = s + 4 * threadIdx.x;
  gpu_cp_async16(mine, from + 4 * element());
  gpu_cp_async_commit();
  gpu_cp_async_wait<0>();
  reinterpret_cast<float4*>(to)[element()] = *reinterpret_cast<const float4*>(mine);
}

// Eight floats to a thread, in one.
struct Eight {
  float x[8];
};
__global__ void __launch_bounds__(kThreads) copy_structs(const float* from, float* to, int) {
  reinterpret_cast<Eight*>(to)[element()] = reinterpret_cast<const Eight*>(from)[element()];
}

__global__ void __launch_bounds__(kThreads) copy_by_library(const float* from, float* to, int n) {
  if (element() == 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

__global__ void __launch_bounds__(kThreads) count_threads(const float*, float* to, int) {
  atomicAdd(reinterpret_cast<int*>(to), 1);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int et_counted(int which, int n_blocks, const float* from, float* to,
                                                                 int n, cudaStream_t stream) {
  constexpr void (*kKernels[])(const float*, float*, int) = {
      read_by_all, read_scattered, read_one_by_one, copy_asynchronously, copy_structs, copy_by_library, count_threads};
  return gpu_launch(kKernels[which], dim3(static_cast<unsigned>(n_blocks)), dim3(kThreads), 0, stream, from, to, n);
}
