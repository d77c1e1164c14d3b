// What programs that sanitizers look at have in common.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda/emulation/control.h"

extern "C" void expertree_drop_wait(int wait);

namespace expertree {

// SEED [WAIT]: learns what is right with all waits, then runs without the one of that number. Status 1 if an output is
// wrong, or if something is left behind.
template <typename Trace>
int run_trace(int argc, char** argv) {
  if (argc < 2) return 2;
  Trace trace(static_cast<unsigned>(std::atoi(argv[1])));
  trace.learn();
  expertree_drop_wait(argc > 2 ? std::atoi(argv[2]) : 0);
  if (!trace.runs_right(12)) {
    std::puts("an output is wrong");
    return 1;
  }
  const std::string left = emu::leaks();
  if (!left.empty()) std::printf("left behind: %s\n", left.c_str());
  return left.empty() ? 0 : 1;
}

}  // namespace expertree
