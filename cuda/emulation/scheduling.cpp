// Which thread of the block runs next. Threads change only at barriers and warp collectives.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/sanitizer_hooks.h"

namespace emu {

namespace {

// The first set bit at or after `from`, cyclically; -1 for none.
int scan_up(const uint64_t* words, unsigned n_words, unsigned from) {
  unsigned i = from / 64;
  uint64_t word = words[i] & ~uint64_t{0} << (from % 64);
  for (unsigned k = 0; k <= n_words; ++k) {
    if (word) return static_cast<int>(i * 64) + __builtin_ctzll(word);
    i = i + 1 == n_words ? 0 : i + 1;
    word = words[i];
  }
  return -1;
}

int scan_down(const uint64_t* words, unsigned n_words, unsigned from) {
  unsigned i = from / 64;
  uint64_t word = words[i] & ~uint64_t{0} >> (63 - from % 64);
  for (unsigned k = 0; k <= n_words; ++k) {
    if (word) return static_cast<int>(i * 64) + 63 - __builtin_clzll(word);
    i = i == 0 ? n_words - 1 : i - 1;
    word = words[i];
  }
  return -1;
}

}  // namespace

void set_ready(unsigned linear) { g_running.ready[linear / 64] |= uint64_t{1} << (linear % 64); }
void clear_ready(unsigned linear) { g_running.ready[linear / 64] &= ~(uint64_t{1} << (linear % 64)); }

ThreadFiber* pick(unsigned current) {
  const unsigned n = g_running.n_threads, n_words = (n + 63) / 64;
  int found = -1;
  switch (config().order) {
    case Order::kForward: found = scan_up(g_running.ready, n_words, current + 1 >= n ? 0 : current + 1); break;
    case Order::kReverse: found = scan_down(g_running.ready, n_words, current == 0 ? n - 1 : current - 1); break;
    case Order::kRandom: found = scan_up(g_running.ready, n_words, static_cast<unsigned>(draw() % n)); break;
  }
  return found < 0 ? nullptr : g_running.fibers[found];
}

void wait_for(Waits what, const char* file, int line) {
  auto* me = static_cast<ThreadFiber*>(g_thread);
  clear_ready(me->linear);
  me->waits = what;
  me->wait_file = file;
  me->wait_line = line;
  ThreadFiber* next = pick(me->linear);
  if (!next) deadlock();
  switch_to(me, next, false);
  me->waits = Waits::kNothing;
}

void pause() {
  auto* me = static_cast<ThreadFiber*>(g_thread);
  ThreadFiber* next = pick(me->linear);
  if (next && next != me) switch_to(me, next, false);
}

void maybe_yield() {
  if (config().order == Order::kRandom && draw() % 4 == 0) pause();
}

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  report(where() + ": " + text);
  g_running.failed = true;
  switch_to(static_cast<ThreadFiber*>(g_thread), &g_running.host, true);
  std::abort();  // an ended fiber is not run again
}

void deadlock() {
  std::map<std::string, unsigned> places;
  for (unsigned i = 0; i < g_running.n_threads; ++i) {
    const ThreadFiber* fiber = g_running.fibers[i];
    if (fiber->waits == Waits::kNothing) continue;
    const char* what = fiber->waits == Waits::kBarrier ? "barrier" : "warp collective";
    ++places[std::string(what) + " at " + fiber->wait_file + ":" + std::to_string(fiber->wait_line)];
  }
  std::string text = "deadlock: no thread can run;";
  for (const auto& [place, n] : places) text += " " + std::to_string(n) + " in a " + place + ";";
  fail("%s %u of %u ended", text.c_str(), g_running.n_done, g_running.n_threads);
}

}  // namespace emu
