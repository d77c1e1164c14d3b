// Switches speculative reads off where they do not pay, and tries them again later.
#pragma once

#include <cstdint>

#include "cpp/experts/expert_cache.h"

namespace expertree {

struct ExpertHint {
  ExpertKey key;
  float priority;
};

class HintGate {
 public:
  bool is_open() const { return closed_until_step_ <= step_; }
  int64_t n_closings() const { return n_closings_; }

  // At the beginning of each step, with the counts so far.
  void begin_step(const HintCounts& counts) {
    ++step_;
    const int64_t in_time = counts.n_in_time - judged_.n_in_time;
    const int64_t late = counts.n_late - judged_.n_late;
    const int64_t wasted = counts.n_wasted - judged_.n_wasted;
    const int64_t n = in_time + late + wasted;
    if (n < kJudgedReads) return;
    judged_ = counts;
    // A late read still saves the time that it was ahead; a wasted one cost a read and perhaps a better expert.
    const double useful = static_cast<double>(in_time) + 0.5 * static_cast<double>(late);
    if (useful >= kLeastUseful * static_cast<double>(n)) return;
    closed_until_step_ = step_ + kClosedSteps;
    ++n_closings_;
  }

 private:
  static constexpr int64_t kJudgedReads = 64;
  static constexpr double kLeastUseful = 0.4;
  static constexpr int64_t kClosedSteps = 256;

  int64_t step_ = 0;
  int64_t closed_until_step_ = 0;
  int64_t n_closings_ = 0;
  HintCounts judged_;
};

}  // namespace expertree
