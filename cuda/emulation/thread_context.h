// What a running CUDA thread knows of itself, and where it meets others. A thread is a fiber; all run on one host
// thread, and change only where they meet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/emulation/vector_types.h"

namespace emu {

struct Fiber {
  uint3 thread_index;
  unsigned lane, warp;  // of the block
  unsigned linear;      // thread number in the block
};

struct BlockInfo {
  uint3 block_index;
  dim3 block_dim, grid_dim;
};

extern Fiber* g_thread;    // the fiber that runs
extern BlockInfo* g_block;  // its block; one block runs at a time

enum class Op { kShuffle, kVote, kSyncwarp, kReduce, kLdmatrix, kMmaS8 };
inline constexpr unsigned kMaxPayload = 64;  // bytes that a lane brings to a warp collective
// Called by the last lane that arrives: turns what the 32 lanes brought into what they take away.
using Finisher = void (*)(unsigned char (*lanes)[kMaxPayload]);

void barrier(const char* file, int line);
enum class Vote { kOr, kAnd, kCount };
int barrier_vote(int predicate, Vote vote, const char* file, int line);

// A warp collective: begin waits for all lanes of the mask, then each reads what it needs and ends.
struct Collective;
Collective* collective_begin(uint32_t mask, Op op, const void* in, unsigned size_bytes, Finisher finisher,
                             const char* file, int line);
void collective_read(const Collective* collective, unsigned lane, void* out, unsigned size_bytes);  // poison if absent
uint32_t collective_arrived(const Collective* collective);
void collective_end(Collective* collective);

inline void exchange(Op op, const void* in, unsigned in_bytes, void* out, unsigned out_bytes, Finisher finisher,
                     const char* file, int line) {  // by the whole warp
  Collective* collective = collective_begin(~0u, op, in, in_bytes, finisher, file, line);
  collective_read(collective, g_thread->lane, out, out_bytes);
  collective_end(collective);
}

void finish_mma_s8(unsigned char (*lanes)[kMaxPayload]);
void finish_ldmatrix(unsigned char (*lanes)[kMaxPayload]);
template <int W>
void finish_sum_f32(unsigned char (*lanes)[kMaxPayload]);
template <int W>
void finish_max_f32(unsigned char (*lanes)[kMaxPayload]);
template <int W>
void finish_sum_i32(unsigned char (*lanes)[kMaxPayload]);
template <int W>
void finish_max_i32(unsigned char (*lanes)[kMaxPayload]);

// cp.async of 16 bytes: noted at issue, handed out for copying at the wait.
void copy_issue(void* shared, const void* global);
void copy_commit();
bool copy_next(int keep_groups, void** shared, const void** global);

void* shared_array(const void* key, size_t size_bytes, size_t alignment);
void* dynamic_shared();
void fence();
void pause();
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);  // ends the kernel

}  // namespace emu

#define threadIdx (::emu::g_thread->thread_index)
#define blockIdx (::emu::g_block->block_index)
#define blockDim (::emu::g_block->block_dim)
#define gridDim (::emu::g_block->grid_dim)
static constexpr int warpSize = 32;
