// Cascade (arXiv 2506.20675): finds by trial how many nodes of another selector's choice pay, and whether any do.
//
// Utility of k nodes = tokens per iteration / (seconds per iteration / seconds of a plain iteration). A test is a few
// short trials that climb from the last best k; then the best k is held. When none beats plain decoding, k = 0 is held,
// twice as long each time. Iterations without a draft measure plain decoding; the first few are spent on that.
#include <algorithm>

#include "cpp/spec/score_order.h"
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

constexpr int32_t kTrialSteps = 4;
constexpr int32_t kMaxTrials = 4;
constexpr int64_t kHoldSteps = 16;
constexpr int64_t kMaxHoldSteps = 1024;
constexpr int32_t kFirstNodes = 2;
constexpr double kPlainKeep = 0.9;  // weight of earlier plain iterations

class Cascade final : public Selector {
 public:
  explicit Cascade(std::unique_ptr<Selector> inner) : inner_(std::move(inner)) {}
  const char* name() const override { return "cascade"; }
  bool lossless() const override { return inner_->lossless(); }
  int64_t most_experts() const override { return inner_->most_experts(); }
  bool wants_draft() override { return k_ > 0 && inner_->wants_draft(); }

  // The best k of the nodes that the other selector chooses.
  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost) override {
    if (k_ == 0) return {};
    const std::vector<int32_t> chosen = inner_->select(tree, sets, cost);
    if (static_cast<int64_t>(chosen.size()) <= k_) return chosen;
    std::vector<uint8_t> is_chosen(static_cast<size_t>(tree.size()), 0);
    for (const int32_t v : chosen) is_chosen[static_cast<size_t>(v)] = 1;
    std::vector<int32_t> nodes;
    for (const int32_t v : by_score(tree)) {
      if (is_chosen[static_cast<size_t>(v)] && static_cast<int64_t>(nodes.size()) < k_) nodes.push_back(v);
    }
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  void observe(const StepOutcome& outcome) override {
    inner_->observe(outcome);
    const double seconds = outcome.draft_seconds + outcome.verify_seconds;
    if (k_ == 0) {
      plain_weight_ = kPlainKeep * plain_weight_ + 1.0;
      plain_sum_ = kPlainKeep * plain_sum_ + seconds;
    }
    tokens_ += 1 + static_cast<int64_t>(outcome.accepted.size());
    seconds_ += seconds;
    ++n_steps_;
    if (testing_ ? n_steps_ == kTrialSteps : n_steps_ >= hold_) end_phase();
  }

 private:
  struct Trial {
    int32_t k;
    double utility;
  };

  void end_phase() {
    const double plain = plain_weight_ > 0.0 ? plain_sum_ / plain_weight_ : 0.0;
    const double utility = seconds_ > 0.0 ? static_cast<double>(tokens_) * plain / seconds_ : 0.0;
    n_steps_ = 0;
    tokens_ = 0;
    seconds_ = 0.0;
    if (!testing_) {
      testing_ = true;
      trials_.clear();
      k_ = best_k_;
      return;
    }
    trials_.push_back({k_, utility});
    k_ = next_trial();
    if (k_ < 0) hold_best();
  }

  // Up from the first k while that helps; down from it if the first step up did not. -1: enough is known.
  int32_t next_trial() const {
    if (static_cast<int32_t>(trials_.size()) == kMaxTrials) return -1;
    const Trial& first = trials_.front();
    const Trial& last = trials_.back();
    if (trials_.size() == 1) return first.k + 1;
    const bool went_up = trials_[1].utility > first.utility;
    if (went_up) return last.utility > trials_[trials_.size() - 2].utility ? last.k + 1 : -1;
    const bool still_better = trials_.size() == 2 || last.utility > best_trial(trials_.size() - 1).utility;
    const int32_t lower = std::min(first.k, last.k) - 1;
    return still_better && lower >= 1 ? lower : -1;
  }

  const Trial& best_trial(size_t n) const {
    return *std::max_element(trials_.begin(), trials_.begin() + static_cast<std::ptrdiff_t>(n),
                             [](const Trial& a, const Trial& b) { return a.utility < b.utility; });
  }

  void hold_best() {
    testing_ = false;
    const Trial& best = best_trial(trials_.size());
    best_k_ = best.k;
    if (best.utility > 1.0) {
      k_ = best.k;
      hold_ = kHoldSteps;
      next_plain_hold_ = kHoldSteps;
    } else {
      k_ = 0;
      hold_ = next_plain_hold_;
      next_plain_hold_ = std::min(2 * next_plain_hold_, kMaxHoldSteps);
    }
  }

  std::unique_ptr<Selector> inner_;
  bool testing_ = false;
  int32_t k_ = 0;
  int32_t best_k_ = kFirstNodes;
  int64_t hold_ = kTrialSteps;  // the first one measures plain decoding
  int64_t next_plain_hold_ = kHoldSteps;
  int64_t n_steps_ = 0;  // of this trial or hold
  int64_t tokens_ = 0;
  double seconds_ = 0.0;
  double plain_weight_ = 0.0;
  double plain_sum_ = 0.0;
  std::vector<Trial> trials_;
};

}  // namespace

std::unique_ptr<Selector> make_cascade(SelectorArgument& argument) {
  const std::string inner = argument.take_text();
  return std::make_unique<Cascade>(make_selector(inner.empty() ? "chain:16" : inner));
}

}  // namespace expertree
