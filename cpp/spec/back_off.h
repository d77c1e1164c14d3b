// Stops drafting that does not pay, and tries again ever more rarely.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace expertree {

// What an iteration came to, for the question whether drafting pays.
struct IterationOutcome {
  bool drafted;   // time was spent on a draft
  bool verified;  // draft nodes were run; if not, it took what plain decoding takes, drafting apart
  int64_t n_tokens;
  double draft_seconds;
  double verify_seconds;
};

// Utility = tokens per iteration / (seconds per iteration / seconds of a plain iteration), over a fading window of
// iterations with a draft. When a window ends below 1, or a part of it clearly below, drafting rests, twice as long each
// time; then a few iterations decide. Not thread-safe.
class BackOff {
 public:
  bool resting() const { return rest_left_ > 0; }

  // expected_plain: seconds of a plain iteration, believed until one was seen.
  void observe(const IterationOutcome& outcome, double expected_plain) {
    if (!outcome.verified) {
      plain_weight_ = kPlainKeep * plain_weight_ + 1.0;
      plain_sum_ = kPlainKeep * plain_sum_ + outcome.verify_seconds;
    }
    if (rest_left_ > 0) {
      if (--rest_left_ == 0) start_trial();
      return;
    }
    if (!outcome.drafted) return;
    tokens_ = kKeep * tokens_ + static_cast<double>(outcome.n_tokens);
    seconds_ = kKeep * seconds_ + outcome.draft_seconds + outcome.verify_seconds;
    ++n_window_;
    const double plain = plain_weight_ > 0.0 ? plain_sum_ / plain_weight_ : expected_plain;
    const double utility = tokens_ * plain / seconds_;
    const bool is_over = n_window_ >= window_;
    if (utility < (is_over ? kLeastUtility : kHopeless) && n_window_ >= kTrialSteps) {
      rest_left_ = next_rest_;
      next_rest_ = std::min(2 * next_rest_, kLongestRest);
    } else if (is_over) {
      n_window_ = 0;
      window_ = kWindowSteps;
      next_rest_ = kFirstRest;
    }
  }

  // How drafting went, for the next session: where it rested, that one begins with a trial.
  std::array<double, 3> state() const { return {tokens_, seconds_, static_cast<double>(next_rest_)}; }
  void restore(std::span<const double> state) {
    if (state.size() != 3 || !(state[1] > 0.0)) return;
    tokens_ = state[0];
    seconds_ = state[1];
    next_rest_ = std::clamp(static_cast<int64_t>(state[2]), kFirstRest, kLongestRest);
    if (next_rest_ > kFirstRest) start_trial();
  }

 private:
  void start_trial() {
    n_window_ = 0;
    window_ = kTrialSteps;
    // What was measured before the rest counts, but less than what comes.
    tokens_ *= 0.25;
    seconds_ *= 0.25;
  }

  static constexpr int64_t kTrialSteps = 4;
  static constexpr int64_t kWindowSteps = 16;
  static constexpr int64_t kFirstRest = 32;
  static constexpr int64_t kLongestRest = 1024;
  static constexpr double kLeastUtility = 0.99;  // noise must not stop a drafter that costs nothing
  static constexpr double kHopeless = 0.85;      // ends a window early
  static constexpr double kKeep = 0.95;
  static constexpr double kPlainKeep = 0.9;

  double tokens_ = 0.0;
  double seconds_ = 0.0;
  double plain_weight_ = 0.0;
  double plain_sum_ = 0.0;
  int64_t n_window_ = 0;  // iterations with a draft, of window_
  int64_t window_ = kWindowSteps;
  int64_t rest_left_ = 0;
  int64_t next_rest_ = kFirstRest;
};

}  // namespace expertree
