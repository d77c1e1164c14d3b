// Stops drafting that does not pay, and tries again ever more rarely.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertree {

// What an iteration came to, for the question whether drafting pays.
struct IterationOutcome {
  bool drafted;   // time was spent on a draft
  bool verified;  // draft nodes were run; if not, it took what plain decoding takes, drafting apart
  int64_t n_tokens;
  double draft_seconds;
  double verify_seconds;
  double wait_seconds = 0.0;  // of them, for experts that were not in memory
  double misses = 0.0;        // such experts
  double plain_misses = 0.0;  // those of decoding its tokens one by one
};

// Keeps an account of what drafting lost or gained on plain decoding, in plain iterations. Losses beyond what may be lost
// end in a rest, twice as long each time; what was gained lately is credit (a one-sided cumulative sum, Page 1954). So a
// drafter that is bad from the start is stopped after an iteration or two, one that has paid is not stopped by an unlucky
// draft, and one that is a little too slow is stopped once that has added up.
//
// What an iteration lost compares like with like. How many experts are missing differs from text to text, and a disk is
// now fast and now slow; so plain decoding of the same tokens is taken to have missed what it would have (PlainCache; not
// what the kept rows missed, for some of it was read for rows that were given up before), at today's price: what a miss
// took in the last drafted iterations, times what it takes more in plain ones, whose reads overlap less. That factor is
// learned where one kind follows the other. Everything else is as measured. Plain iterations of a rest tell what plain
// decoding takes; those between drafts find the cache as drafts leave it, and count only until
// there was a rest. Not thread-safe.
class BackOff {
 public:
  BackOff();
  bool resting() const { return rest_left_ > 0; }
  // expected_plain: seconds of a plain iteration, waiting included, believed until one was seen.
  void observe(const IterationOutcome& outcome, double expected_plain);
  // Plain iterations that drafting lost in this one; negative: gained.
  double loss(const IterationOutcome& outcome, double expected_plain) const;

  // How drafting went, for the next session: that one goes on with a rest, for so long at most as it may be about
  // something else, and may lose no more than after one.
  std::vector<double> state() const;
  void restore(std::span<const double> state);

 private:
  // Sums over iterations of one kind, older ones fading.
  struct Spent {
    double weight = 0.0;
    double run = 0.0;  // seconds but for waiting
    double waited = 0.0;
    double misses = 0.0;

    void add(const IterationOutcome& outcome, double keep);
    double per_miss() const { return misses > 0.0 ? waited / misses : 0.0; }
  };
  const Spent* plain() const;
  void compare_misses();

  Spent resting_, between_;       // plain iterations
  Spent last_plain_, last_drafts_;  // the last ones of either kind: what a miss takes now
  int64_t since_plain_ = 0;       // iterations
  double log_overlap_;            // of what a miss takes in plain iterations over that in drafted ones
  double account_ = 0.0;     // what was lost
  int64_t rest_left_ = 0;
  int64_t next_rest_;
};

}  // namespace expertree
