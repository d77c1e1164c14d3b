// Stops drafting that does not pay, and tries again ever more rarely.
#pragma once

#include <algorithm>
#include <cstdint>

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
// iterations with a draft. When a window ends clearly below 1, drafting rests, twice as long each time; then a short
// window decides. Not thread-safe.
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
    if (--window_left_ > 0) return;
    window_left_ = kWindowSteps;
    const double plain = plain_weight_ > 0.0 ? plain_sum_ / plain_weight_ : expected_plain;
    if (tokens_ * plain >= kLeastUtility * seconds_) {
      next_rest_ = kFirstRest;
      return;
    }
    rest_left_ = next_rest_;
    next_rest_ = std::min(2 * next_rest_, kLongestRest);
  }

 private:
  void start_trial() {
    window_left_ = kTrialSteps;
    // What was measured before the rest counts, but less than what comes.
    tokens_ *= 0.25;
    seconds_ *= 0.25;
  }

  static constexpr int64_t kTrialSteps = 4;
  static constexpr int64_t kWindowSteps = 16;
  static constexpr int64_t kFirstRest = 16;
  static constexpr int64_t kLongestRest = 1024;
  static constexpr double kLeastUtility = 0.99;  // noise must not stop a drafter that costs nothing
  static constexpr double kKeep = 0.95;
  static constexpr double kPlainKeep = 0.9;

  double tokens_ = 0.0;
  double seconds_ = 0.0;
  double plain_weight_ = 0.0;
  double plain_sum_ = 0.0;
  int64_t window_left_ = kWindowSteps;
  int64_t rest_left_ = 0;
  int64_t next_rest_ = kFirstRest;
};

}  // namespace expertree
