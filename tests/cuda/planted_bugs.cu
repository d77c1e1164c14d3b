#include "tests/cuda/planted_bugs.h"

#include "cuda/gpu/gpu.h"

namespace {

__device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }

__global__ void missing_barrier(int* out, bool fixed) {
  GPU_SHARED(int, s, 256);
  s[thread()] = thread();
  if (fixed) __syncthreads();
  out[thread()] = s[255 - thread()];
}

__global__ void uninitialised_shared(int* out, bool fixed) {
  GPU_SHARED(int, s, 256);
  if (thread() < 128 || fixed) s[thread()] = 0;
  __syncthreads();
  out[thread()] = s[thread()] & 1 ? 0 : thread();
}

__global__ void shared_out_of_bounds(int* out, bool fixed) {
  GPU_SHARED(int, s, 255);
  if (thread() < 255 || !fixed) s[thread()] = thread();
  __syncthreads();
  out[thread()] = thread() < 255 ? s[thread()] : 255;
}

__global__ void global_out_of_bounds(int* out, bool fixed) {
  const int v = out[thread() + (fixed ? 0 : 1)];
  out[thread()] = v == 123456 ? 7 : thread();
}

__global__ void divergent_barrier(int* out, bool fixed) {
  GPU_SHARED(int, s, 256);
  s[thread()] = thread();
  if (fixed || thread() < 100) __syncthreads();
  s[thread()] += 0;
  __syncthreads();
  out[thread()] = s[thread()];
}

__global__ void divergent_shuffle(int* out, bool fixed) {
  int v = thread();
  if (fixed) {
    v = __shfl_xor_sync(0xffffffffu, v, 1);
    v = __shfl_xor_sync(0xffffffffu, v, 1);
  } else if (thread() & 1) {
    v = __shfl_xor_sync(0xffffffffu, v, 2);
  } else {
    v = __shfl_xor_sync(0xffffffffu, v, 1);
  }
  out[thread()] = v;
}

__global__ void missing_copy_wait(int* out, const int* in, bool fixed) {
  GPU_SHARED(int, s, 1024);
  gpu_cp_async16(s + 4 * thread(), in + 4 * thread());
  gpu_cp_async_commit();
  if (fixed) gpu_cp_async_wait<0>();
  __syncthreads();
  out[thread()] = s[thread()];
  if (!fixed) gpu_cp_async_wait<0>();
}

__global__ void buffer_reused_too_early(int* out, const int* in, bool fixed) {
  GPU_SHARED(int, s, 256);
  int sum = 0;
  for (int i = 0; i < 4; ++i) {
    s[thread()] = in[i * 256 + thread()];
    __syncthreads();
    sum += s[(thread() + 64) % 256];
    if (fixed) __syncthreads();
  }
  out[thread()] = sum;
}

__global__ void misaligned_load(int* out, bool fixed) {
  const int4 v = *reinterpret_cast<const int4*>(out + (fixed ? 0 : 1) + thread() % 32 * 4);
  __syncthreads();
  out[thread()] = v.x + v.y + v.z + v.w == 123456 ? 7 : thread();
}

__global__ void missing_syncwarp(int* out, bool fixed) {
  GPU_SHARED(int, s, 256);
  s[thread()] = thread();
  if (fixed) __syncwarp();
  out[thread()] = s[thread() ^ 31];
}

__global__ void race_between_blocks(int* out, bool fixed) {
  if (fixed && blockIdx.x != 0) return;
  out[thread()] = thread();  // the same value: only a detector of races can tell
}

__global__ void lost_update(int* out, bool fixed) {  // counts its threads
  if (fixed) {
    atomicAdd(&out[0], 1);
  } else {
    out[0] += 1;
  }
}

__global__ void partial_warp(int* out, bool fixed) {
  if (!fixed && thread() % 32 == 31) return;
  const int sum = gpu_warp_sum(thread() % 32);
  out[thread()] = sum == 496 ? thread() : 7;
}

}  // namespace

cudaError_t launch_bug(KernelBug bug, bool fixed, int* out, const int* in, cudaStream_t stream) {
  const dim3 one(1), two(2), block(256);
  switch (bug) {
    case KernelBug::kMissingBarrier: return gpu_launch(missing_barrier, one, block, 0, stream, out, fixed);
    case KernelBug::kUninitialisedShared: return gpu_launch(uninitialised_shared, one, block, 0, stream, out, fixed);
    case KernelBug::kSharedOutOfBounds: return gpu_launch(shared_out_of_bounds, one, block, 0, stream, out, fixed);
    case KernelBug::kGlobalOutOfBounds: return gpu_launch(global_out_of_bounds, one, block, 0, stream, out, fixed);
    case KernelBug::kDivergentBarrier: return gpu_launch(divergent_barrier, one, block, 0, stream, out, fixed);
    case KernelBug::kDivergentShuffle: return gpu_launch(divergent_shuffle, one, block, 0, stream, out, fixed);
    case KernelBug::kMissingCopyWait: return gpu_launch(missing_copy_wait, one, block, 0, stream, out, in, fixed);
    case KernelBug::kBufferReusedTooEarly:
      return gpu_launch(buffer_reused_too_early, one, block, 0, stream, out, in, fixed);
    case KernelBug::kMisalignedLoad: return gpu_launch(misaligned_load, one, block, 0, stream, out, fixed);
    case KernelBug::kMissingSyncwarp: return gpu_launch(missing_syncwarp, one, block, 0, stream, out, fixed);
    case KernelBug::kRaceBetweenBlocks: return gpu_launch(race_between_blocks, two, block, 0, stream, out, fixed);
    case KernelBug::kLostUpdate: return gpu_launch(lost_update, two, dim3(64), 0, stream, out, fixed);
    case KernelBug::kPartialWarp: return gpu_launch(partial_warp, one, block, 0, stream, out, fixed);
  }
  return cudaErrorInvalidValue;
}

namespace {

__global__ void add_one(int* to, const int* from, int n) {
  const int i = static_cast<int>(blockIdx.x) * 32 + thread();
  if (i < n) to[i] = from[i] + 1;
}

__global__ void nothing() {}

}  // namespace

cudaError_t launch_add_one(int* to, const int* from, int n, cudaStream_t stream) {
  return gpu_launch(add_one, dim3(static_cast<unsigned>((n + 31) / 32)), dim3(32), 0, stream, to, from, n);
}

cudaError_t launch_nothing(size_t smem_bytes, cudaStream_t stream) {
  return gpu_launch(nothing, dim3(1), dim3(32), smem_bytes, stream);
}
