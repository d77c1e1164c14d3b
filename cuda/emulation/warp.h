// Barriers, shuffles and votes. A call carries its source line, so that lanes that meet at different ones are found.
#pragma once

#include "cuda/emulation/thread_context.h"

#define EMU_CALLER const char *emu_file = __builtin_FILE(), int emu_line = __builtin_LINE()

inline void __syncthreads(EMU_CALLER) { emu::barrier(emu_file, emu_line); }
inline int __syncthreads_or(int p, EMU_CALLER) { return emu::barrier_vote(p, emu::Vote::kOr, emu_file, emu_line); }
inline int __syncthreads_and(int p, EMU_CALLER) { return emu::barrier_vote(p, emu::Vote::kAnd, emu_file, emu_line); }
inline int __syncthreads_count(int p, EMU_CALLER) {
  return emu::barrier_vote(p, emu::Vote::kCount, emu_file, emu_line);
}
inline void __syncwarp(unsigned mask = ~0u, EMU_CALLER) {
  emu::collective_end(emu::collective_begin(mask, emu::Op::kSyncwarp, nullptr, 0, nullptr, emu_file, emu_line));
}
inline void __threadfence() { emu::fence(); }
inline void __threadfence_block() { emu::fence(); }
inline void __nanosleep(unsigned) { emu::pause(); }

namespace emu {

template <class T>
T shuffle(unsigned mask, T value, unsigned source, bool in_range, const char* file, int line) {
  static_assert(sizeof(T) <= 16);
  Collective* collective = collective_begin(mask, Op::kShuffle, &value, sizeof(T), nullptr, file, line);
  if (in_range) collective_read(collective, source, &value, sizeof(T));
  collective_end(collective);
  return value;
}

}  // namespace emu

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_CALLER) {
  const unsigned w = static_cast<unsigned>(width), lane = emu::g_thread->lane;
  return emu::shuffle(mask, value, (lane & ~(w - 1)) + (static_cast<unsigned>(source) & (w - 1)), true, emu_file,
                      emu_line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_CALLER) {
  const unsigned w = static_cast<unsigned>(width), lane = emu::g_thread->lane;
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  return emu::shuffle(mask, value, source & 31, (source & ~(w - 1)) <= (lane & ~(w - 1)), emu_file, emu_line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_CALLER) {
  const unsigned w = static_cast<unsigned>(width), lane = emu::g_thread->lane;
  const bool in_range = (lane & (w - 1)) + delta < w;
  return emu::shuffle(mask, value, in_range ? lane + delta : lane, in_range, emu_file, emu_line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_CALLER) {
  const unsigned w = static_cast<unsigned>(width), lane = emu::g_thread->lane;
  const bool in_range = (lane & (w - 1)) >= delta;
  return emu::shuffle(mask, value, in_range ? lane - delta : lane, in_range, emu_file, emu_line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_CALLER) {
  const int vote = predicate != 0;
  emu::Collective* collective = emu::collective_begin(mask, emu::Op::kVote, &vote, 4, nullptr, emu_file, emu_line);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((emu::collective_arrived(collective) >> lane & 1) == 0) continue;
    int other = 0;
    emu::collective_read(collective, lane, &other, 4);
    ballot |= static_cast<unsigned>(other) << lane;
  }
  emu::collective_end(collective);
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate, EMU_CALLER) {
  return __ballot_sync(mask, predicate, emu_file, emu_line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_CALLER) {
  return __ballot_sync(mask, !predicate, emu_file, emu_line) == 0;
}
