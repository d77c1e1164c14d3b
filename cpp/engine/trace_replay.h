// What a selector would have made of recorded runs on another machine, step by step: the selectors and the cache
// policies are those that run, the times are the machine's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpp/engine/recorded_run.h"
#include "cpp/engine/replay_machine.h"

namespace expertree {

struct ReplayOptions {
  std::string select;     // as on the command line; "": plain decoding
  bool oracle = false;    // the selector is told what nodes do use, not what was predicted
  bool calibrate = true;  // what passes of 1, 2, 4, .. rows take is known from the start
};

struct ReplayedStep {
  int64_t n_tokens = 0;  // emitted
  int64_t n_drafted = 0;
  int64_t n_rows = 0;  // the root's included
  int64_t n_accepted = 0;
  ReplayedPass pass;
  double plain_misses = 0.0;  // of decoding its tokens one by one
  double predicted_seconds = 0.0;  // of the pass; 0: nothing was selected from
  double draft_seconds = 0.0;
  double select_seconds = 0.0;  // that choosing took here; no part of the machine's time
};

// The steps of all runs, one after the other on one machine that starts cold; each run begins with its prompt, whose
// pass counts for the cache alone. Throws kInvalidRequest for runs of unequal shape, a machine that does not fit them, an
// unknown selector or policy, and for a selector that is not lossless, because other experts would give another text.
std::vector<ReplayedStep> replay(const std::vector<const RecordedRun*>& runs, const ReplayMachine& machine,
                                 const ReplayOptions& options);

}  // namespace expertree
