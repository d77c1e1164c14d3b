#include "cpp/spec/back_off.h"

#include <algorithm>
#include <cmath>

namespace expertree {
namespace {

// In plain iterations. Chosen with simulated drafters of utility 0.55 to 1.3 in sessions of 48 and 1,500 tokens: more
// to lose costs bad drafters more, less stops good ones by chance.
constexpr double kMayLose = 1.5;
constexpr double kMostCredit = 4.0;
constexpr double kInherited = 1.0;  // credit of the next session
constexpr double kProven = 3.0;     // credit after which a rest is a short one again
constexpr double kMostLoss = 1.0;   // of one iteration, whatever the machine was doing meanwhile

constexpr int64_t kFirstRest = 32;
constexpr int64_t kLongestRest = 1024;
constexpr int64_t kMostInherited = 128;  // of a rest: the next session may be about something else
constexpr double kKeepOutcome = 0.97;
constexpr double kLastKeep = 0.8;   // five iterations
constexpr int64_t kNeighbours = 8;  // iterations apart, during which a disk's speed stays about the same
constexpr double kLeastDrafts = 2.4;  // of the faded weight: three in a row
constexpr double kLearn = 0.1;
constexpr double kFirstOverlap = 0.18;  // 1.2, as measured with half and a quarter of the default model's experts
constexpr double kMostOverlap = 0.7;    // 2
constexpr size_t kStateSize = 7;

}  // namespace

BackOff::BackOff() : log_overlap_(kFirstOverlap), next_rest_(kFirstRest) {}

void BackOff::Spent::add(const IterationOutcome& outcome, double keep) {
  weight = keep * weight + 1.0;
  run = keep * run + outcome.verify_seconds - outcome.wait_seconds;
  waited = keep * waited + outcome.wait_seconds;
  misses = keep * misses + outcome.misses;
}

const BackOff::Spent* BackOff::plain() const {
  if (resting_.weight > 0.0) return &resting_;
  return between_.weight > 0.0 ? &between_ : nullptr;
}

double BackOff::loss(const IterationOutcome& outcome, double expected_plain) const {
  const auto n_tokens = static_cast<double>(outcome.n_tokens);
  const Spent* seen = plain();
  if (seen == nullptr) {
    if (expected_plain <= 0.0) return 0.0;
    return (outcome.draft_seconds + outcome.verify_seconds) / expected_plain - n_tokens;
  }
  const double run = seen->run / seen->weight;
  const double overlap = std::exp(log_overlap_);
  const double drafted_miss = last_drafts_.misses > 0.0 ? last_drafts_.per_miss() : last_plain_.per_miss() / overlap;
  const double plain_miss = drafted_miss * overlap;
  const double plain_iteration = run + seen->misses / seen->weight * plain_miss;
  if (plain_iteration <= 0.0) return 0.0;
  const double took = outcome.draft_seconds + outcome.verify_seconds - outcome.wait_seconds +
                      outcome.misses * (outcome.verified ? drafted_miss : plain_miss);
  return (took - n_tokens * run - outcome.plain_misses * plain_miss) / plain_iteration;
}

// Some drafted iterations soon after plain ones: means of several on both sides, for single ones scatter.
void BackOff::compare_misses() {
  if (since_plain_ > kNeighbours || last_drafts_.weight < kLeastDrafts) return;
  if (!(last_plain_.per_miss() > 0.0) || !(last_drafts_.per_miss() > 0.0)) return;
  const double seen = std::log(last_plain_.per_miss() / last_drafts_.per_miss());
  log_overlap_ = std::clamp(log_overlap_ + kLearn * (seen - log_overlap_), 0.0, kMostOverlap);
}

void BackOff::observe(const IterationOutcome& outcome, double expected_plain) {
  if (!outcome.verified) {
    (resting() ? resting_ : between_).add(outcome, kKeepOutcome);
    last_plain_.add(outcome, kLastKeep);
    since_plain_ = 0;
  } else {
    ++since_plain_;
    last_drafts_.add(outcome, kLastKeep);
    compare_misses();
  }
  if (rest_left_ > 0) {
    --rest_left_;
    return;
  }
  if (!outcome.drafted) return;
  account_ = std::max(-kMostCredit, account_ + std::min(kMostLoss, loss(outcome, expected_plain)));
  if (account_ > kMayLose) {
    rest_left_ = next_rest_;
    next_rest_ = std::min(2 * next_rest_, kLongestRest);
    account_ = 0.0;
    last_drafts_ = {};  // the disk may be another when drafting begins again
  } else if (account_ < -kProven) {
    next_rest_ = kFirstRest;
  }
}

std::vector<double> BackOff::state() const {
  const double n = std::max(1.0, resting_.weight);
  return {account_,     static_cast<double>(next_rest_), resting_.run / n, resting_.waited / n, resting_.misses / n,
          log_overlap_, static_cast<double>(rest_left_)};
}

void BackOff::restore(std::span<const double> state) {
  if (state.size() != kStateSize) return;
  next_rest_ = std::clamp(static_cast<int64_t>(state[1]), kFirstRest, kLongestRest);
  rest_left_ = std::clamp(static_cast<int64_t>(state[6]), int64_t{0}, kMostInherited);
  account_ = next_rest_ > kFirstRest ? 0.0 : std::clamp(state[0], -kInherited, 0.0);
  log_overlap_ = std::clamp(state[5], 0.0, kMostOverlap);
  if (state[2] > 0.0) last_plain_ = resting_ = {1.0, state[2], state[3], state[4]};
}

}  // namespace expertree
