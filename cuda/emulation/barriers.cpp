// __syncthreads and its votes.
#include "cuda/emulation/machine.h"
#include "cuda/emulation/sanitizer_hooks.h"

namespace emu {

namespace {

void open_if_complete(Barrier& barrier) {
  if (barrier.arrived == 0 || barrier.arrived < g_running.n_threads - g_running.n_done) return;
  for (unsigned i = 0; i < kMaxThreads / 64; ++i) {
    g_running.ready[i] |= barrier.waiting[i];
    barrier.waiting[i] = 0;
  }
  barrier.results[barrier.generation % 2] = barrier.vote;
  barrier.arrived = 0;
  ++barrier.generation;
}

}  // namespace

int barrier_vote(int predicate, Vote vote, const char* file, int line) {
  Barrier& barrier = g_running.barrier;
  const unsigned generation = barrier.generation, me = g_thread->linear;
  if (barrier.arrived == 0) {
    barrier.file = file;
    barrier.line = line;
    barrier.vote = vote == Vote::kAnd;
  } else if (barrier.line != line || !same_file(barrier.file, file)) {
    fail("divergent barrier: reached at %s:%d while other threads wait at %s:%d", file, line, barrier.file,
         barrier.line);
  }
  const int yes = predicate != 0;
  barrier.vote = vote == Vote::kOr ? barrier.vote | yes : vote == Vote::kAnd ? barrier.vote & yes : barrier.vote + yes;
  release(&g_running.tokens[generation % 2]);
  ++barrier.arrived;
  open_if_complete(barrier);
  if (barrier.generation != generation) {
    maybe_yield();
  } else {
    barrier.waiting[me / 64] |= uint64_t{1} << (me % 64);
    wait_for(Waits::kBarrier, file, line);
  }
  acquire(&g_running.tokens[generation % 2]);
  return barrier.results[generation % 2];
}

void barrier(const char* file, int line) { barrier_vote(0, Vote::kOr, file, line); }

void barrier_after_exit() { open_if_complete(g_running.barrier); }

// Stronger than the GPU's: ThreadSanitizer sees the order that it gives, not which accesses it is meant for.
void fence() {
  static char token;
  release(&token);
  acquire(&token);
}

}  // namespace emu
