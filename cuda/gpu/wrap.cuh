// The only file with inline assembly: each wrapper has its GPU body and its emulated one side by side. Warp-wide ones
// are called by all 32 lanes together, from one source line.
#pragma once

#include "cuda/gpu/gpu.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GPU_PRE_AMPERE 1
#endif

#if defined(CUDA_EMU)
#define GPU_CALLER , const char *gpu_file = __builtin_FILE(), int gpu_line = __builtin_LINE()
#else
#define GPU_CALLER
#endif

// d += A B, int8 into int32: A 16 x 32 by rows, B 32 x 8 by columns, d 16 x 8, in the fragments of mma.m16n8k32. With
// g = lane / 4 and t = lane % 4, four bytes to a register from k on:
//   a[0] row g, k = 4t       a[1] row g + 8, k = 4t     a[2] row g, k = 16 + 4t     a[3] row g + 8, k = 16 + 4t
//   b[0] column g, k = 4t    b[1] column g, k = 16 + 4t
//   d[0], d[1] row g, columns 2t, 2t + 1                d[2], d[3] row g + 8, the same columns
__device__ __forceinline__ void gpu_mma_m16n8k32_s8(int (&d)[4], const int (&a)[4], const int (&b)[2] GPU_CALLER) {
#if defined(CUDA_EMU)
  const int in[10] = {a[0], a[1], a[2], a[3], b[0], b[1], d[0], d[1], d[2], d[3]};
  emu::exchange(emu::Op::kMmaS8, in, 40, d, 16, emu::finish_mma_s8, gpu_file, gpu_line);
#elif !defined(GPU_PRE_AMPERE)
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else  // Turing has m8n8k16: four of them
#define GPU_MMA_K16(D0, D1, A, B)                                                             \
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" \
               : "+r"(D0), "+r"(D1)                                                           \
               : "r"(A), "r"(B))
  GPU_MMA_K16(d[0], d[1], a[0], b[0]);
  GPU_MMA_K16(d[0], d[1], a[2], b[1]);
  GPU_MMA_K16(d[2], d[3], a[1], b[0]);
  GPU_MMA_K16(d[2], d[3], a[3], b[1]);
#undef GPU_MMA_K16
#endif
}

// The same over 16 elements: d += A B, A 16 x 16, B 16 x 8.
//   a[0] row g, k = 4t       a[1] row g + 8, k = 4t     b column g, k = 4t
__device__ __forceinline__ void gpu_mma_m16n8k16_s8(int (&d)[4], const int (&a)[2], int b GPU_CALLER) {
#if defined(CUDA_EMU)
  const int in[10] = {a[0], a[1], 0, 0, b, 0, d[0], d[1], d[2], d[3]};
  emu::exchange(emu::Op::kMmaS8, in, 40, d, 16, emu::finish_mma_s8, gpu_file, gpu_line);
#elif !defined(GPU_PRE_AMPERE)
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b));
#else
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a[0]), "r"(b));
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(d[2]), "+r"(d[3])
               : "r"(a[1]), "r"(b));
#endif
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane l gives the 16-byte row l % 8 of matrix l / 8, and
// r[m] of lane l is the elements 2 (l % 4), + 1 of row l / 4 of matrix m.
__device__ __forceinline__ void gpu_ldmatrix_x4(int (&r)[4], const void* row GPU_CALLER) {
#if defined(CUDA_EMU)
  const int4 bytes = *static_cast<const int4*>(row);  // read here: a sanitizer charges the lane that gave the address
  emu::exchange(emu::Op::kLdmatrix, &bytes, 16, r, 16, emu::finish_ldmatrix, gpu_file, gpu_line);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}

// Starts the copy of 16 aligned bytes from global to shared memory, which are there after the wait for its group.
__device__ __forceinline__ void gpu_cp_async16(void* shared, const void* global) {
#if defined(CUDA_EMU)
  *static_cast<int4*>(shared) = int4{-1, -1, -1, -1};  // undefined until waited for
  emu::copy_issue(shared, global);
#elif !defined(GPU_PRE_AMPERE)
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
  *static_cast<int4*>(shared) = *static_cast<const int4*>(global);
#endif
}

// Closes the group of the copies that this thread has started since the last one.
__device__ __forceinline__ void gpu_cp_async_commit() {
#if defined(CUDA_EMU)
  emu::copy_commit();
#elif !defined(GPU_PRE_AMPERE)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the KEEP youngest groups of this thread are under way. Other threads' copies need a barrier too.
template <int KEEP>
__device__ __forceinline__ void gpu_cp_async_wait() {
#if defined(CUDA_EMU)
  void* shared = nullptr;
  const void* global = nullptr;
  while (emu::copy_next(KEEP, &shared, &global)) *static_cast<int4*>(shared) = *static_cast<const int4*>(global);
#elif !defined(GPU_PRE_AMPERE)
  asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory");
#endif
}

// Reductions of each group of W lanes (a power of two, lanes 0 .. W-1 first), given to all of its lanes. The order is
// that of a tree: v[l] + v[l + W/2], then W/4, and so on (gpu_group_sum<16> is C1 of cpp/kernels/canonical.h). The
// emulation meets once instead of log2(W) times. max of float is fmaxf: a NaN gives way to a number.
#if defined(CUDA_EMU)
#define GPU_GROUP_REDUCTION(NAME, T, FINISH, COMBINED)                                 \
  template <int W>                                                                     \
  __device__ __forceinline__ T NAME(T v GPU_CALLER) {                                  \
    static_assert(W == 2 || W == 4 || W == 8 || W == 16 || W == 32);                   \
    emu::exchange(emu::Op::kReduce, &v, 4, &v, 4, emu::FINISH<W>, gpu_file, gpu_line); \
    return v;                                                                          \
  }
#else
#define GPU_GROUP_REDUCTION(NAME, T, FINISH, COMBINED)                    \
  template <int W>                                                        \
  __device__ __forceinline__ T NAME(T v) {                                \
    static_assert(W == 2 || W == 4 || W == 8 || W == 16 || W == 32);      \
    _Pragma("unroll") for (int offset = W / 2; offset > 0; offset /= 2) { \
      const T other = __shfl_xor_sync(0xffffffffu, v, offset);            \
      v = COMBINED;                                                       \
    }                                                                     \
    return v;                                                             \
  }
#endif
GPU_GROUP_REDUCTION(gpu_group_sum, float, finish_sum_f32, __fadd_rn(v, other))
GPU_GROUP_REDUCTION(gpu_group_max, float, finish_max_f32, fmaxf(v, other))
GPU_GROUP_REDUCTION(gpu_group_sum, int, finish_sum_i32, v + other)
GPU_GROUP_REDUCTION(gpu_group_max, int, finish_max_i32, max(v, other))
#undef GPU_GROUP_REDUCTION

#if defined(CUDA_EMU)
#define GPU_WARP_REDUCTION(NAME, GROUP, T) \
  __device__ __forceinline__ T NAME(T v GPU_CALLER) { return GROUP<32>(v, gpu_file, gpu_line); }
#else
#define GPU_WARP_REDUCTION(NAME, GROUP, T) \
  __device__ __forceinline__ T NAME(T v) { return GROUP<32>(v); }
#endif
GPU_WARP_REDUCTION(gpu_warp_sum, gpu_group_sum, float)
GPU_WARP_REDUCTION(gpu_warp_max, gpu_group_max, float)
GPU_WARP_REDUCTION(gpu_warp_sum, gpu_group_sum, int)
GPU_WARP_REDUCTION(gpu_warp_max, gpu_group_max, int)
#undef GPU_WARP_REDUCTION
