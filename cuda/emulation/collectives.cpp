// Warp collectives: a record that lanes bring data to and take data from.
#include <sys/mman.h>

#include <new>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/sanitizer_hooks.h"

namespace emu {

namespace {

Collective* new_collective() {  // from the system, for malloc would be watched; kept for the process's life
  constexpr size_t kChunk = size_t{1} << 20, kSize = (sizeof(Collective) + 63) / 64 * 64;
  static char* chunk;
  static size_t left;
  if (left < kSize) {
    void* p = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    chunk = static_cast<char*>(p);
    left = kChunk;
  }
  auto* collective = reinterpret_cast<Collective*>(chunk);
  chunk += kSize;
  left -= kSize;
  return collective;
}

void finish_if_complete(Warp& warp, unsigned first_thread, Collective* collective) {
  if (((collective->arrived | warp.exited) & collective->mask) != collective->mask) return;
  if (collective->finisher) {
    if (collective->arrived != ~0u) {
      fail("%s:%d: only lanes %08x of the warp took part", collective->file, collective->line, collective->arrived);
    }
    collective->finisher(collective->lanes);
  }
  collective->done = true;
  collective->readers = collective->arrived;
  for (uint32_t lanes = collective->arrived; lanes; lanes &= lanes - 1) {
    set_ready(first_thread + static_cast<unsigned>(__builtin_ctz(lanes)));
  }
}

// The pending record with this mask, or a fresh one. Records with overlapping masks may be pending together: lanes that
// ran ahead wait in one for those that are still in another.
Collective* find_record(Warp& warp, uint32_t mask, uint32_t my_bit, Op op, const char* file, int line) {
  Collective* unused = nullptr;
  for (unsigned i = 0; i < warp.n_collectives; ++i) {
    Collective* other = warp.collectives[i];
    if (!other->used) {
      unused = other;
    } else if (!other->done && other->mask == mask && !(other->arrived & my_bit)) {
      if (other->op != op || other->line != line || !same_file(other->file, file)) {
        fail("%s:%d: divergent warp collective: lanes %08x wait at %s:%d", file, line, other->arrived, other->file,
             other->line);
      }
      return other;
    }
  }
  if (!unused) {
    if (warp.n_collectives == kMaxCollectives) fail("%s:%d: too many pending warp collectives", file, line);
    unused = warp.collectives[warp.n_collectives++] = new_collective();
  }
  return unused;
}

char* token_of(const Warp& warp, const Collective* collective) {
  unsigned slot = 0;
  while (warp.collectives[slot] != collective) ++slot;
  return g_running.tokens + 2 + (&warp - g_running.warps) * kMaxCollectives + slot;
}

}  // namespace

Collective* collective_begin(uint32_t mask, Op op, const void* in, unsigned size_bytes, Finisher finisher,
                             const char* file, int line) {
  const unsigned lane = g_thread->lane;
  Warp& warp = g_running.warps[g_thread->warp];
  const uint32_t my_bit = uint32_t{1} << lane;
  mask &= warp.valid;
  if (!(mask & my_bit)) fail("%s:%d: lane %u is not in its own mask %08x", file, line, lane, mask);
  Collective* collective = find_record(warp, mask, my_bit, op, file, line);
  if (!collective->used) {
    collective->mask = mask;
    collective->arrived = 0;
    collective->op = op;
    collective->used = true;
    collective->done = false;
    collective->finisher = finisher;
    collective->file = file;
    collective->line = line;
    collective->token = token_of(warp, collective);
  }
  // Not memcpy but for known sizes: a call would be intercepted, and the record taken for the threads' own memory.
  const auto* bytes = static_cast<const unsigned char*>(in);
  if (size_bytes == 4) {
    __builtin_memcpy(collective->lanes[lane], bytes, 4);
  } else {
    for (unsigned i = 0; i < size_bytes; ++i) collective->lanes[lane][i] = bytes[i];
  }
  if (op == Op::kSyncwarp) release(collective->token);
  collective->arrived |= my_bit;
  finish_if_complete(warp, g_thread->warp * 32, collective);
  if (collective->done) {
    maybe_yield();
  } else {
    wait_for(Waits::kCollective, file, line);
  }
  if (op == Op::kSyncwarp) acquire(collective->token);
  return collective;
}

void collective_read(const Collective* collective, unsigned lane, void* out, unsigned size_bytes) {
  auto* bytes = static_cast<unsigned char*>(out);
  lane %= 32;
  if (!(collective->arrived >> lane & 1)) {  // undefined on the GPU
    for (unsigned i = 0; i < size_bytes; ++i) bytes[i] = static_cast<unsigned char>(config().poison);
  } else if (size_bytes == 4) {
    __builtin_memcpy(bytes, collective->lanes[lane], 4);
  } else {
    for (unsigned i = 0; i < size_bytes; ++i) bytes[i] = collective->lanes[lane][i];
  }
}

uint32_t collective_arrived(const Collective* collective) { return collective->arrived; }

void collective_end(Collective* collective) {
  collective->readers &= ~(uint32_t{1} << g_thread->lane);
  if (collective->readers == 0) collective->used = false;
}

void collectives_after_exit(Warp& warp, unsigned first_thread) {
  for (unsigned i = 0; i < warp.n_collectives; ++i) {
    Collective* collective = warp.collectives[i];
    if (collective->used && !collective->done) finish_if_complete(warp, first_thread, collective);
  }
}

}  // namespace emu
