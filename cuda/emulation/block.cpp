// Runs one block: its threads, shared memory, asynchronous copies.
#include <cstdlib>
#include <cstring>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/sanitizer_hooks.h"

namespace emu {

namespace {

constexpr size_t kMaxStaticShared = size_t{48} << 10;

void* allocate_shared(size_t size_bytes, size_t alignment) {
  Unwatched unwatched;
  void* p = nullptr;
  if (posix_memalign(&p, alignment, size_bytes ? size_bytes : 1)) std::abort();
  fill_with_poison(p, size_bytes);
  return p;
}

void thread_main() {
  if (under_asan()) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
  auto* me = static_cast<ThreadFiber*>(g_thread);
  acquire(&g_running.start_token);
  g_running.run(g_running.call);
  if (me->first_copy < me->n_copies) fail("the thread ends with cp.async copies that it never waited for");
  release(&g_running.end_token);
  ++g_running.n_done;
  clear_ready(me->linear);
  me->waits = Waits::kNothing;
  barrier_after_exit();
  Warp& warp = g_running.warps[me->warp];
  warp.exited |= uint32_t{1} << me->lane;
  collectives_after_exit(warp, me->warp * 32);
  if (g_running.n_done == g_running.n_threads) switch_to(me, &g_running.host, true);
  ThreadFiber* next = pick(me->linear);
  if (!next) deadlock();
  switch_to(me, next, true);
  std::abort();  // an ended fiber is not run again
}

void reset_warps() {
  for (unsigned w = 0; w < (g_running.n_threads + 31) / 32; ++w) {
    Warp& warp = g_running.warps[w];
    const unsigned rest = g_running.n_threads - w * 32;
    warp.exited = 0;
    warp.valid = rest >= 32 ? ~0u : (1u << rest) - 1;
    for (unsigned i = 0; i < warp.n_collectives; ++i) warp.collectives[i]->used = false;
  }
}

void start_threads(dim3 block) {
  choose_fiber_pool();
  unsigned i = 0;
  for (unsigned z = 0; z < block.z; ++z) {
    for (unsigned y = 0; y < block.y; ++y) {
      for (unsigned x = 0; x < block.x; ++x, ++i) {
        ThreadFiber* fiber = g_running.fibers[i] = fiber_of(i);
        static_cast<Fiber&>(*fiber) = Fiber{{x, y, z}, i % 32, i / 32, i};
        fiber->waits = Waits::kNothing;
        fiber->n_copies = fiber->first_copy = 0;
        fiber->copy_group = 0;
        fiber->asan_fake_stack = nullptr;
        prepare(fiber, thread_main);
        set_ready(i);
      }
    }
  }
}

void free_shared() {
  Unwatched unwatched;
  for (unsigned i = 0; i < g_running.n_shared; ++i) std::free(g_running.shared[i].data);
  std::free(g_running.dynamic_shared);
}

}  // namespace

void fill_with_poison(void* p, size_t size_bytes) {
  Unwatched unwatched;
  std::memset(p, config().poison, size_bytes);
}

bool run_block(void (*run)(void*), void* call, uint3 index, dim3 grid, dim3 block, size_t smem_bytes) {
  constexpr size_t kTokens = 2 + size_t{kMaxWarps} * kMaxCollectives;
  Block& b = g_running;
  b.block_index = index;
  b.grid_dim = grid;
  b.block_dim = block;
  b.n_threads = block.x * block.y * block.z;
  b.n_done = 0;
  b.run = run;
  b.call = call;
  b.failed = false;
  std::memset(b.ready, 0, sizeof b.ready);
  b.barrier = Barrier{};
  if (under_tsan() || !b.tokens) {
    Unwatched unwatched;
    b.tokens = static_cast<char*>(std::malloc(kTokens));
  }
  reset_warps();
  b.n_shared = 0;
  b.static_shared_bytes = 0;
  b.dynamic_shared = smem_bytes ? allocate_shared(smem_bytes, 128) : nullptr;
  start_threads(block);
  note_host_stack(&b.host);
  g_block = &b;
  const Order order = config().order;
  const unsigned first = order == Order::kForward   ? 0
                         : order == Order::kReverse ? b.n_threads - 1
                                                    : static_cast<unsigned>(draw() % b.n_threads);
  switch_to(&b.host, b.fibers[first], false);
  g_thread = nullptr;
  g_block = nullptr;
  free_shared();
  if (under_tsan()) {
    Unwatched unwatched;
    std::free(b.tokens);
    b.tokens = nullptr;
  }
  return !b.failed;
}

void* shared_array(const void* key, size_t size_bytes, size_t alignment) {
  for (unsigned i = 0; i < g_running.n_shared; ++i) {
    if (g_running.shared[i].key == key) return g_running.shared[i].data;
  }
  if (g_running.n_shared == kMaxSharedArrays) fail("more than %u shared arrays", kMaxSharedArrays);
  g_running.static_shared_bytes += size_bytes;
  if (g_running.static_shared_bytes > kMaxStaticShared) {
    fail("static shared memory of %zu bytes, more than 48 KiB", g_running.static_shared_bytes);
  }
  void* data = allocate_shared(size_bytes, alignment);
  g_running.shared[g_running.n_shared++] = {key, data};
  return data;
}

void* dynamic_shared() { return g_running.dynamic_shared; }

void copy_issue(void* shared, const void* global) {
  auto* me = static_cast<ThreadFiber*>(g_thread);
  if (me->n_copies == kMaxAsyncCopies) fail("more than %u cp.async copies under way", kMaxAsyncCopies);
  me->copies[me->n_copies++] = {shared, global, me->copy_group};
}

void copy_commit() { ++static_cast<ThreadFiber*>(g_thread)->copy_group; }

bool copy_next(int keep_groups, void** shared, const void** global) {
  auto* me = static_cast<ThreadFiber*>(g_thread);
  if (me->first_copy == me->n_copies) {
    me->n_copies = me->first_copy = 0;
    return false;
  }
  const AsyncCopy& copy = me->copies[me->first_copy];
  if (copy.group >= me->copy_group - keep_groups) return false;
  ++me->first_copy;
  *shared = copy.shared;
  *global = copy.global;
  return true;
}

}  // namespace emu
