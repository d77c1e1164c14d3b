// CUDA C++ kernel sources on a CPU: what gpu.h includes where there is no nvcc. __shared__, __noinline__, inline
// assembly, fast-math functions, float atomics and maskless shuffles are left out on purpose: they do not compile here.
#pragma once

#if defined(__CUDACC__)
#error "cuda_emu.h is for host compilers"
#endif

#define CUDA_EMU 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define GPU_NOINLINE __attribute__((noinline))

#include "cuda/emulation/atomics.h"
#include "cuda/emulation/float_types.h"
#include "cuda/emulation/intrinsics.h"
#include "cuda/emulation/launch.h"
#include "cuda/emulation/runtime_api.h"
#include "cuda/emulation/thread_context.h"
#include "cuda/emulation/vector_types.h"
#include "cuda/emulation/warp.h"
