// Ours: the part of the tree with the most expected tokens per second, each expert priced by where it is now.
//
// Per second of the whole run, not of this step: a run's rate is the sum of tokens over the sum of times, and the choice
// that raises it most is the one with the most tokens above what its time is worth at that rate (Dinkelbach 1967). So a
// step where drafts are good takes nodes that its own, higher rate would leave out, and a poor one leaves out what its
// own would take. Until some steps have told the rate, the step's own is taken.
//
// Greedy by whole paths: for every node outside, the acceptance that the path down to it adds per second that it adds;
// the best path is taken and everything priced again, for marginal times fall as the union of experts grows. The best
// set on the way counts, the empty one included; then leaves whose loss is a gain are dropped.
#include <algorithm>
#include <iterator>

#include "cpp/spec/acceptance_fit.h"
#include "cpp/spec/back_off.h"
#include "cpp/spec/selectors/selectors.h"
#include "cpp/spec/tree_pricing.h"

namespace expertree {
namespace {

class ResidencySelector final : public Selector {
 public:
  ResidencySelector(bool blind, bool guarded, bool for_run) : blind_(blind), guarded_(guarded), for_run_(for_run) {}
  const char* name() const override { return "residency"; }
  bool wants_draft() override { return !(guarded_ && back_off_.resting()); }
  float least_score() const override { return least_score_; }

  std::vector<double> state() const override {
    std::vector<double> state = acceptance_.state();
    state.push_back(least_score_);
    state.push_back(run_steps_ > 0.0 ? run_tokens_ / run_steps_ : 0.0);
    state.push_back(run_steps_ > 0.0 ? run_seconds_ / run_steps_ : 0.0);
    std::ranges::copy(back_off_.state(), std::back_inserter(state));
    return state;
  }

  void restore(std::span<const double> state) override {
    constexpr size_t kOwn = AcceptanceFit::kStateSize;
    if (state.size() < kOwn + 3) return;
    acceptance_.restore(state);
    least_score_ = static_cast<float>(state[kOwn]);
    if (state[kOwn + 1] > 0.0 && state[kOwn + 2] > 0.0) {
      run_steps_ = kLeastSteps;
      run_tokens_ = kLeastSteps * state[kOwn + 1];
      run_seconds_ = kLeastSteps * state[kOwn + 2];
    }
    back_off_.restore(state.subspan(kOwn + 3));
  }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost) override {
    expected_plain_ = cost.plain_seconds();
    if (tree.size() == 0) return {};
    find_gains(tree, &gains_);
    draft_ = cost.draft_seconds();
    plain_tokens_ = 1.0 + cost.other_tokens();
    least_score_ = acceptance_.least_score(least_acceptance(sets, cost));
    pricing_.reset(tree, sets, cost, blind_);
    rate_ = for_run_ ? run_rate() : 0.0;
    std::vector<int32_t> nodes = grow(tree);
    drop_leaves(tree, &nodes);
    chosen_seconds_ = pricing_.seconds() + draft_;
    chosen_tokens_ = plain_tokens_;
    for (const int32_t v : nodes) chosen_tokens_ += gains_[static_cast<size_t>(v)];
    return nodes;
  }

  bool may_choose_again() const override { return true; }

  double expected_tokens(const TokenTree& tree, std::span<const int32_t> nodes) const override {
    std::vector<double> gains;
    find_gains(tree, &gains);
    double tokens = 1.0;
    for (const int32_t v : nodes) tokens += gains[static_cast<size_t>(v)];
    return tokens;
  }

  void observe(const StepOutcome& outcome) override {
    // A bound that one odd measurement made too high leaves nothing to choose from, and so nothing to correct it by.
    if (outcome.tree->size() == 0) least_score_ *= 0.5f;
    // A rest says nothing about scores.
    if (outcome.selected.empty() && wants_draft()) acceptance_.forget();
    for (const int32_t v : outcome.selected) {
      const bool accepted = std::find(outcome.accepted.begin(), outcome.accepted.end(), v) != outcome.accepted.end();
      const auto i = static_cast<size_t>(v);
      acceptance_.observe(outcome.tree->scores[i], outcome.tree->depths[i], accepted);
    }
    if (outcome.tree->size() > 0) {
      run_steps_ = kKeepSteps * run_steps_ + 1.0;
      run_tokens_ = kKeepSteps * run_tokens_ + chosen_tokens_;
      run_seconds_ = kKeepSteps * run_seconds_ + chosen_seconds_;
    }
    // A drafter that found nothing, and took no time over it, made a plain iteration.
    const bool drafted = outcome.tree->size() > 0 || outcome.draft_seconds > 0.01 * outcome.verify_seconds;
    back_off_.observe(
        {drafted, !outcome.selected.empty(), 1 + static_cast<int64_t>(outcome.accepted.size()), outcome.draft_seconds,
         outcome.verify_seconds, outcome.wait_seconds, outcome.misses, outcome.plain_misses},
        expected_plain_);
  }

 private:
  // The chance that each node is accepted, no more than its parent's.
  void find_gains(const TokenTree& tree, std::vector<double>* gains) const {
    gains->resize(static_cast<size_t>(tree.size()));
    for (size_t v = 0; v < gains->size(); ++v) {
      (*gains)[v] = acceptance_.probability(tree.scores[v], tree.depths[v]);
      if (tree.parents[v] >= 0) (*gains)[v] = std::min((*gains)[v], (*gains)[static_cast<size_t>(tree.parents[v])]);
    }
  }

  // A node adds at least the time of its row, even when others use all of its experts; less acceptance than that time
  // in plain iterations cannot raise the rate.
  double least_acceptance(const ExpertSets& sets, const StepCost& cost) const {
    double row = std::max(0.0, cost.base_seconds(2) - cost.base_seconds(1));
    for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
      row += sets.n_used * (cost.run_seconds(layer, 0, 2) - cost.run_seconds(layer, 0, 1));
    }
    return expected_plain_ > 0.0 ? row / expected_plain_ : 0.0;
  }

  // Tokens per second of late, as expected when they were chosen; 0: unknown.
  double run_rate() const { return run_steps_ < kLeastSteps ? 0.0 : run_tokens_ / run_seconds_; }

  // What is to be made large.
  double worth(double tokens, double seconds) const {
    return rate_ > 0.0 ? tokens - rate_ * seconds : tokens / seconds;
  }

  // The best of the sets that the greedy passes through, rising.
  std::vector<int32_t> grow(const TokenTree& tree) {
    added_.clear();
    path_gains_.resize(gains_.size());
    double gain = plain_tokens_;
    double most = worth(gain, pricing_.seconds() + draft_);
    size_t n_best = 0;
    while (added_.size() < gains_.size()) {
      const int32_t last = best_path(tree);
      gain += path_gains_[static_cast<size_t>(last)];
      const size_t first_new = added_.size();
      for (int32_t v = last; v >= 0 && !pricing_.has(v); v = tree.parents[static_cast<size_t>(v)]) added_.push_back(v);
      std::reverse(added_.begin() + static_cast<std::ptrdiff_t>(first_new), added_.end());
      for (size_t i = first_new; i < added_.size(); ++i) pricing_.add(added_[i]);
      const double here = worth(gain, pricing_.seconds() + draft_);
      if (here > most) {
        most = here;
        n_best = added_.size();
      }
    }
    std::vector<int32_t> nodes(added_.begin(), added_.begin() + static_cast<std::ptrdiff_t>(n_best));
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  // The end of the path with the most gain per second.
  int32_t best_path(const TokenTree& tree) {
    int32_t best = -1;
    double best_rate = 0.0;
    for (int32_t v = 0; v < tree.size(); ++v) {
      if (pricing_.has(v)) continue;
      const auto i = static_cast<size_t>(v);
      const int32_t parent = tree.parents[i];
      const bool starts_here = parent < 0 || pricing_.has(parent);
      path_gains_[i] = gains_[i] + (starts_here ? 0.0 : path_gains_[static_cast<size_t>(parent)]);
      // What costs nothing, or less than rounding, is as good as anything can be.
      const double rate = path_gains_[i] / std::max(pricing_.path_seconds(v), 1e-9);
      if (best >= 0 && rate <= best_rate) continue;
      best = v;
      best_rate = rate;
    }
    return best;
  }

  void drop_leaves(const TokenTree& tree, std::vector<int32_t>* nodes) {
    pricing_.set_nodes(*nodes);
    n_children_.assign(gains_.size(), 0);
    double gain = plain_tokens_;
    for (const int32_t v : *nodes) {
      gain += gains_[static_cast<size_t>(v)];
      if (const int32_t parent = tree.parents[static_cast<size_t>(v)]; parent >= 0) {
        ++n_children_[static_cast<size_t>(parent)];
      }
    }
    double most = worth(gain, pricing_.seconds() + draft_);
    // From the back: a parent is looked at after its children.
    for (size_t i = nodes->size(); i-- > 0;) {
      const int32_t v = (*nodes)[i];
      const auto at = static_cast<size_t>(v);
      if (n_children_[at] > 0) continue;
      const double smaller_gain = gain - gains_[at];
      const double smaller = worth(smaller_gain, pricing_.seconds_without(v) + draft_);
      if (smaller <= most) continue;
      pricing_.remove(v);
      gain = smaller_gain;
      most = smaller;
      if (tree.parents[at] >= 0) --n_children_[static_cast<size_t>(tree.parents[at])];
    }
    std::erase_if(*nodes, [&](int32_t v) { return !pricing_.has(v); });
  }

  static constexpr double kKeepSteps = 0.95;  // some twenty steps
  static constexpr double kLeastSteps = 4.0;

  bool blind_;
  bool guarded_;
  bool for_run_;
  AcceptanceFit acceptance_;
  BackOff back_off_;
  TreePricing pricing_;
  double expected_plain_ = 0.0;
  double draft_ = 0.0;
  double plain_tokens_ = 1.0;  // of the pass without any of the tree
  double rate_ = 0.0;  // tokens per second that time is worth; 0: what the step itself reaches
  double chosen_tokens_ = 0.0, chosen_seconds_ = 0.0;  // of the last choice, as expected
  double run_tokens_ = 0.0, run_seconds_ = 0.0, run_steps_ = 0.0;
  float least_score_ = 0.0f;
  std::vector<double> gains_;  // [n_nodes], acceptance
  std::vector<double> path_gains_;  // [n_nodes], with the ancestors that are outside
  std::vector<int32_t> added_;
  std::vector<int32_t> n_children_;
};

}  // namespace

std::unique_ptr<Selector> make_residency(SelectorArgument& argument) {
  // For comparisons: prices that ignore where experts are; never a rest from drafting; the rate of each step by itself.
  const bool blind = argument.take_option("places", {"known", "ignored"}) == "ignored";
  const bool guarded = argument.take_option("guard", {"on", "off"}) == "on";
  const bool for_run = argument.take_option("rate", {"run", "step"}) == "run";
  return std::make_unique<ResidencySelector>(blind, guarded, for_run);
}

}  // namespace expertree
