// Fibers: stacks, pools, and the switch between them. A switch ends with `ret`, which the CPU's return predictor likes,
// and the tops of stacks are staggered over the cache's sets: both were measured to double the speed.
#include <sys/mman.h>

#include <pthread.h>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/sanitizer_hooks.h"

#if !defined(EMU_UCONTEXT)
extern "C" void expertree_emu_switch(void** save, void* to) __attribute__((visibility("hidden")));
asm(R"(.text
.globl expertree_emu_switch
.hidden expertree_emu_switch
.type expertree_emu_switch,@function
expertree_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size expertree_emu_switch,.-expertree_emu_switch
.section .note.GNU-stack,"",@progbits
.text
)");
#endif

namespace emu {

Fiber* g_thread;
BlockInfo* g_block;
Block g_running;

namespace {

constexpr size_t kStackBytes = size_t{64} << 10, kSanitizedStackBytes = size_t{256} << 10;
// ThreadSanitizer draws a pool per block, and binds threads to its fibers differently each time: one fiber that serves
// two blocks would order them.
constexpr unsigned kPools = 4;
std::vector<ThreadFiber*> g_pools[kPools];
unsigned g_pool, g_rotation;

char* map(size_t size_bytes) {
  void* p = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(p);
}

ThreadFiber* make_fiber(unsigned number) {
  Unwatched unwatched;
  const size_t size = under_asan() || under_tsan() ? kSanitizedStackBytes : kStackBytes;
  char* stack = map(kPage + size);
  mprotect(stack, kPage, PROT_NONE);
  stack += kPage;
  const uintptr_t top = reinterpret_cast<uintptr_t>(stack + size - sizeof(ThreadFiber) - number * 448 % 16384);
  auto* fiber = new (reinterpret_cast<void*>(top & ~uintptr_t{63})) ThreadFiber();
  fiber->stack = stack;
  fiber->stack_bytes = size;
  fiber->copies = reinterpret_cast<AsyncCopy*>(map(sizeof(AsyncCopy) * kMaxAsyncCopies));
  if (under_tsan()) {
    fiber->tsan_fiber = __tsan_create_fiber(0);
    char name[32];
    std::snprintf(name, sizeof name, "CUDA thread %u", number);
    __tsan_set_fiber_name(fiber->tsan_fiber, name);
  }
  return fiber;
}

}  // namespace

void choose_fiber_pool() {
  g_pool = under_tsan() ? static_cast<unsigned>(draw() % kPools) : 0;
  auto& pool = g_pools[g_pool];
  while (pool.size() < g_running.n_threads) pool.push_back(make_fiber(static_cast<unsigned>(pool.size())));
  g_rotation = under_tsan() ? static_cast<unsigned>(draw() % g_running.n_threads) : 0;
}

ThreadFiber* fiber_of(unsigned linear) { return g_pools[g_pool][(linear + g_rotation) % g_running.n_threads]; }

void prepare(ThreadFiber* fiber, void (*entry)()) {
#if defined(EMU_UCONTEXT)
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = static_cast<size_t>(reinterpret_cast<char*>(fiber) - fiber->stack);
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, entry, 0);
#else
  void** sp = reinterpret_cast<void**>(fiber) - 1;
  *sp = nullptr;  // entry's own return address: it never returns
  *--sp = reinterpret_cast<void*>(entry);
  for (int saved_register = 0; saved_register < 6; ++saved_register) *--sp = nullptr;
  fiber->stack_pointer = sp;
#endif
}

void switch_to(ThreadFiber* from, ThreadFiber* to, bool from_ends) {
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to->tsan_fiber, kTsanNoSync);
  if (under_asan()) {
    __sanitizer_start_switch_fiber(from_ends ? nullptr : &from->asan_fake_stack, to->stack, to->stack_bytes);
  }
  g_thread = to;
#if defined(EMU_UCONTEXT)
  swapcontext(&from->context, &to->context);
#else
  expertree_emu_switch(&from->stack_pointer, to->stack_pointer);
#endif
  if (under_asan()) __sanitizer_finish_switch_fiber(from->asan_fake_stack, nullptr, nullptr);
}

void note_host_stack(ThreadFiber* host) {
  if (under_tsan()) host->tsan_fiber = __tsan_get_current_fiber();
  if (!under_asan()) return;
  thread_local char* stack = nullptr;
  thread_local size_t stack_bytes = 0;
  if (!stack) {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    void* p = nullptr;
    pthread_attr_getstack(&attributes, &p, &stack_bytes);
    pthread_attr_destroy(&attributes);
    stack = static_cast<char*>(p);
  }
  host->stack = stack;
  host->stack_bytes = stack_bytes;
}

}  // namespace emu
