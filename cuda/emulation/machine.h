// The emulated multiprocessor: one block at a time, a fiber per thread. Internal to the emulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/emulation/control.h"
#include "cuda/emulation/thread_context.h"

#if !defined(__x86_64__) || defined(EXPERTREE_EMU_UCONTEXT)
#define EMU_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emu {

constexpr size_t kPage = 4096;
constexpr unsigned kMaxThreads = 1024, kMaxWarps = 32, kMaxCollectives = 40, kMaxSharedArrays = 64;

enum class Waits : char { kNothing, kBarrier, kCollective };

struct AsyncCopy {
  void* shared;
  const void* global;
  int group;
};

// Lies at the top of its own stack; what a switch touches comes first.
struct alignas(64) ThreadFiber : Fiber {
  void* stack_pointer;
  const char* wait_file;
  int wait_line;
  Waits waits;
  char* stack;
  size_t stack_bytes;
  void* asan_fake_stack;
  void* tsan_fiber;
  AsyncCopy* copies;  // kMaxAsyncCopies, those before first_copy done
  unsigned n_copies, first_copy;
  int copy_group;
#if defined(EMU_UCONTEXT)
  ucontext_t context;
#endif
};
constexpr unsigned kMaxAsyncCopies = 1024;

struct Collective {
  uint32_t mask, arrived, readers;
  Op op;
  bool used, done;
  const char* file;
  int line;
  char* token;
  Finisher finisher;
  unsigned char lanes[32][kMaxPayload];
};

struct Warp {
  uint32_t exited, valid;
  unsigned n_collectives;
  Collective* collectives[kMaxCollectives];
};

struct Barrier {
  unsigned arrived, generation;
  uint64_t waiting[kMaxThreads / 64];
  int vote;
  const char* file;
  int line;
  int results[2];  // by parity of the generation
};

struct SharedArray {
  const void* key;
  void* data;
};

struct Block : BlockInfo {
  unsigned n_threads, n_done;
  uint64_t ready[kMaxThreads / 64];
  ThreadFiber* fibers[kMaxThreads];
  Barrier barrier;
  Warp warps[kMaxWarps];
  SharedArray shared[kMaxSharedArrays];
  unsigned n_shared;
  size_t static_shared_bytes;
  void* dynamic_shared;
  void (*run)(void*);
  void* call;
  bool failed;
  ThreadFiber host;  // the host thread's own context
  char start_token, end_token;
  // For ThreadSanitizer: two of the barrier, then one per collective; fresh for every block, so that blocks stay
  // unordered.
  char* tokens;
};
extern Block g_running;

// fibers.cpp
ThreadFiber* fiber_of(unsigned linear);  // drawn from this block's pool
void choose_fiber_pool();
void prepare(ThreadFiber* fiber, void (*entry)());
void switch_to(ThreadFiber* from, ThreadFiber* to, bool from_ends);
void note_host_stack(ThreadFiber* host);

inline bool same_file(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

// scheduling.cpp
void set_ready(unsigned linear);
void clear_ready(unsigned linear);
ThreadFiber* pick(unsigned current);  // the next thread to run, or nullptr
void wait_for(Waits what, const char* file, int line);
void maybe_yield();
[[noreturn]] void deadlock();

// barriers.cpp, collectives.cpp: a thread has ended
void barrier_after_exit();
void collectives_after_exit(Warp& warp, unsigned first_thread);

// block.cpp
bool run_block(void (*run)(void*), void* call, uint3 index, dim3 grid, dim3 block, size_t smem_bytes);
void fill_with_poison(void* p, size_t size_bytes);

// Told of every kernel that runs; null but where byte_counts.cpp is linked in.
struct KernelObserver {
  void (*begins)(const void* kernel, dim3 grid);
  void (*block_ends)();
  void (*ends)();
};
extern const KernelObserver* g_observer;

// control.cpp
uint64_t draw();  // the seeded random numbers
void report(const std::string& fault);
std::string where();  // block and thread, or "host"

}  // namespace emu
