#include "cpp/engine/trace_replay.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"
#include "cpp/spec/selector.h"

namespace expertree {
namespace {

constexpr int64_t kPromptPiece = 512;  // rows of a pass, as sessions and forward passes have it
constexpr int64_t kCalibrationPositions = 2;

std::vector<int64_t> rows_of(std::span<const int32_t> nodes) {
  std::vector<int64_t> rows = {0};
  for (const int32_t node : nodes) rows.push_back(node + 1);
  return rows;
}

// What a drafter would have drafted that leaves out nodes below a score; a node's descendants score no more than it.
struct CutTree {
  TokenTree tree;
  ExpertSets sets;             // of the root and its nodes; empty where nothing is known
  std::vector<int32_t> nodes;  // of the whole tree, rising
};

CutTree cut(const TokenTree& tree, const ExpertSets& sets, float least_score) {
  CutTree kept;
  kept.sets = {sets.n_layers, sets.n_experts, sets.n_used, {}};
  const auto keep_sets = [&](int64_t row) {
    for (int32_t layer = 0; layer < sets.n_layers && !sets.empty(); ++layer) {
      const std::span<const int32_t> ids = sets.of(row, layer);
      kept.sets.ids.insert(kept.sets.ids.end(), ids.begin(), ids.end());
    }
  };
  std::vector<int32_t> index(static_cast<size_t>(tree.size()), -1);
  keep_sets(0);
  for (int32_t v = 0; v < tree.size(); ++v) {
    const auto i = static_cast<size_t>(v);
    if (tree.scores[i] < least_score) continue;
    const int32_t parent = tree.parents[i];
    index[i] = kept.tree.add(tree.tokens[i], parent < 0 ? -1 : index[static_cast<size_t>(parent)], tree.scores[i]);
    kept.nodes.push_back(v);
    keep_sets(v + 1);
  }
  return kept;
}

// A drafter that works depth by depth spends one pass more than it keeps depths, but for the last one.
double share_of_passes(const TokenTree& whole, const TokenTree& kept) {
  const auto deepest = [](const TokenTree& tree) {
    return tree.depths.empty() ? 0 : *std::ranges::max_element(tree.depths);
  };
  const int32_t depth = deepest(whole);
  return depth == 0 ? 1.0 : std::min(1.0, (deepest(kept) + 1.0) / depth);
}

class Replay {
 public:
  Replay(const ReplayMachine& machine, const ReplayOptions& options, int32_t n_experts)
      : machine_(machine),
        options_(options),
        n_experts_(n_experts),
        memory_(machine, n_experts),
        plain_(machine, n_experts) {}

  void add(const RecordedRun& run) {
    if (options_.calibrate && profile_.n_rows.empty()) calibrate(run);
    run_prompt(run, is_plain(), &memory_);
    run_prompt(run, true, &plain_);
    ReplayCost cost(machine_, memory_);
    cost.learned().restore(profile_);
    std::unique_ptr<Selector> selector = is_plain() ? nullptr : make_selector(options_.select);
    if (selector != nullptr && !learned_.empty()) selector->restore(learned_);
    for (int64_t at = 0; at < std::ssize(run.positions);) {
      steps_.push_back(step(run, at, selector.get(), &cost));
      at += steps_.back().n_tokens;
    }
    profile_ = cost.learned().profile();
    if (selector != nullptr) learned_ = selector->state();
  }

  std::vector<ReplayedStep> take() { return std::move(steps_); }

 private:
  bool is_plain() const { return options_.select.empty(); }

  // Plain decoding asks about the last row only, which goes through the last layer alone; drafting wants to see them all.
  static void run_prompt(const RecordedRun& run, bool plain, ReplayMemory* memory) {
    const int64_t n = std::ssize(run.prompt.ids) / (static_cast<int64_t>(run.prompt.n_layers) * run.prompt.n_used);
    for (int64_t begin = 0; begin < n; begin += kPromptPiece) {
      std::vector<int64_t> rows(static_cast<size_t>(std::min(kPromptPiece, n - begin)));
      std::iota(rows.begin(), rows.end(), begin);
      const size_t n_last = !plain ? rows.size() : begin + kPromptPiece >= n ? 1 : 0;
      memory->prompt(run.prompt, rows, std::span(rows).last(n_last));
    }
  }

  // With a memory of its own: what a machine does when it first meets the model.
  void calibrate(const RecordedRun& run) {
    ReplayMemory memory(machine_, n_experts_);
    run_prompt(run, is_plain(), &memory);
    ReplayCost cost(machine_, memory);
    const auto n_positions = std::min(kCalibrationPositions, static_cast<int64_t>(std::ssize(run.positions)));
    for (int64_t at = 0; at < n_positions; ++at) {
      const RecordedRun::Position& position = run.positions[static_cast<size_t>(at)];
      for (const int64_t n : calibration_rows(position.tree.size() + 1)) {
        // The first nodes are a tree of their own: parents come before their children.
        std::vector<int32_t> nodes(static_cast<size_t>(n - 1));
        std::iota(nodes.begin(), nodes.end(), 0);
        record(memory.pass(position.routed, rows_of(nodes)), position.routed, n, 0.0, &cost);
      }
    }
    profile_ = cost.learned().profile();
  }

  static void record(const ReplayedPass& pass, const ExpertSets& sets, int64_t n_rows, double predicted,
                     ReplayCost* cost) {
    cost->learned().record(
        {n_rows, pass.n_experts, n_rows * sets.n_layers * sets.n_used, pass.seconds, pass.wait_seconds, predicted});
  }

  ReplayedStep step(const RecordedRun& run, int64_t at, Selector* selector, ReplayCost* cost) {
    const RecordedRun::Position& position = run.positions[static_cast<size_t>(at)];
    ReplayedStep step;
    CutTree drafted;
    std::vector<int32_t> selected;
    if (selector != nullptr && selector->wants_draft()) {
      const ExpertSets& sets = options_.oracle ? position.routed : position.predicted;
      drafted = cut(position.tree, sets, selector->least_score());
      step.n_drafted = drafted.tree.size();
      step.draft_seconds = machine_.draft_seconds * share_of_passes(position.tree, drafted.tree);
    }
    const TokenTree& tree = drafted.tree;
    std::vector<int32_t> chosen;  // of the drafted tree
    if (tree.size() > 0) {
      const int64_t start = now_us();
      chosen = selector->select(tree, drafted.sets, *cost);
      tree.check_selection(selector->name(), chosen);
      step.select_seconds = static_cast<double>(now_us() - start) * 1e-6;
      step.predicted_seconds = step_seconds(*cost, drafted.sets, chosen);
      for (const int32_t v : chosen) selected.push_back(drafted.nodes[static_cast<size_t>(v)]);
    }
    const ReplayedPath path = walk(run, at, selected);
    step.n_rows = std::ssize(selected) + 1;
    step.n_tokens = path.n_tokens;
    step.n_accepted = std::ssize(path.accepted);
    const auto misses = static_cast<double>(memory_.missing(position.routed, rows_of(selected)));
    for (const int64_t row : rows_of(path.accepted)) {
      step.plain_misses += static_cast<double>(plain_.pass(position.routed, std::span(&row, 1)).n_fetched);
    }
    step.pass = memory_.pass(position.routed, rows_of(selected));
    const std::vector<int64_t> kept = rows_of(path.accepted);
    memory_.keep(position.routed, std::span(kept).subspan(1));
    if (tree.size() > 0) cost->learned().record_draft(step.draft_seconds);
    record(step.pass, position.routed, step.n_rows, step.predicted_seconds, cost);
    if (selector != nullptr) {
      std::vector<int32_t> accepted;
      for (const int32_t v : path.accepted) {
        accepted.push_back(static_cast<int32_t>(std::ranges::lower_bound(drafted.nodes, v) - drafted.nodes.begin()));
      }
      selector->observe({&tree, chosen, accepted, step.draft_seconds, step.pass.seconds, step.pass.wait_seconds, misses,
                         step.plain_misses});
    }
    return step;
  }

  const ReplayMachine& machine_;
  const ReplayOptions& options_;
  int32_t n_experts_;
  ReplayMemory memory_;
  ReplayMemory plain_;           // what it would be had every token been decoded by itself
  CostProfile profile_;          // what the runs so far have taught the next one
  std::vector<double> learned_;  // and its selector
  std::vector<ReplayedStep> steps_;
};

}  // namespace

std::vector<ReplayedStep> replay(const std::vector<const RecordedRun*>& runs, const ReplayMachine& machine,
                                 const ReplayOptions& options) {
  if (runs.empty()) throw Error(ErrorCode::kInvalidRequest, "replay: no runs; record at least one");
  const ExpertSets& shape = runs.front()->prompt;
  for (const RecordedRun* run : runs) {
    if (run->prompt.n_layers != shape.n_layers || run->prompt.n_experts != shape.n_experts ||
        run->prompt.n_used != shape.n_used) {
      throw Error(ErrorCode::kInvalidRequest, "replay: the runs are of different models; replay them apart");
    }
  }
  machine.check(shape.n_layers);
  if (!options.select.empty() && !make_selector(options.select)->lossless()) {
    throw Error(ErrorCode::kInvalidRequest,
                "replay: selector '" + options.select + "' changes the text, which a recorded run cannot tell; run it");
  }
  Replay replay(machine, options, shape.n_experts);
  for (const RecordedRun* run : runs) replay.add(*run);
  return replay.take();
}

}  // namespace expertree
