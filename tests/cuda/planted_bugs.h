// Kernels with one bug each, and without it when `fixed`: what the emulation should find and should not.
#pragma once

#include <cuda_runtime.h>

enum class KernelBug {
  kMissingBarrier,
  kUninitialisedShared,
  kSharedOutOfBounds,
  kGlobalOutOfBounds,
  kDivergentBarrier,
  kDivergentShuffle,
  kMissingCopyWait,
  kBufferReusedTooEarly,
  kMisalignedLoad,
  kMissingSyncwarp,
  kRaceBetweenBlocks,
  kLostUpdate,
  kPartialWarp
};

// out: 256 ints on the device, in: 1024.
cudaError_t launch_bug(KernelBug bug, bool fixed, int* out, const int* in, cudaStream_t stream);

// to[i] = from[i] + 1, i < n, from two blocks of 32.
cudaError_t launch_add_one(int* to, const int* from, int n, cudaStream_t stream);
cudaError_t launch_nothing(size_t smem_bytes, cudaStream_t stream);
