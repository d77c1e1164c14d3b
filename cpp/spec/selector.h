// Plug point: which nodes of a drafted tree are worth verifying.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/step_cost.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

// What a verified step came to. Where several sequences shared the pass, times and misses are this one's share of it.
struct StepOutcome {
  const TokenTree* tree;
  std::span<const int32_t> selected;
  std::span<const int32_t> accepted;  // the nodes of the accepted path, in order
  double draft_seconds;
  double verify_seconds;
  double wait_seconds = 0.0;  // of them, for experts that were not in memory
  double misses = 0.0;        // such experts, of all rows
  double plain_misses = 0.0;  // those of decoding the kept tokens one by one
};

class Selector {
 public:
  virtual ~Selector() = default;
  virtual const char* name() const = 0;
  // False: the verified rows' output is not the target's own (moespec).
  virtual bool lossless() const { return true; }
  // Experts of a layer that the verified rows may use together; 0: any. More than 0 is not lossless.
  virtual int64_t most_experts() const { return 0; }

  // Indices of the nodes to verify, rising, closed under parents; none means plain decoding. `sets` may be empty.
  virtual std::vector<int32_t> select(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost) = 0;
  // Whether select() may be asked several times for one step, with other prices: when sequences share a pass.
  virtual bool may_choose_again() const { return false; }
  // Tokens that these nodes are expected to bring, the one after them included.
  virtual double expected_tokens(const TokenTree& tree, std::span<const int32_t> nodes) const {
    double tokens = 1.0;
    for (const int32_t v : nodes) tokens += static_cast<double>(tree.scores[static_cast<size_t>(v)]);
    return tokens;
  }
  // After every step, k = 0 included.
  virtual void observe(const StepOutcome&) {}
  // Asked before drafting: false saves the drafting time of a step that will be plain anyway.
  virtual bool wants_draft() { return true; }
  // Nodes that a drafter scores lower would not be selected whatever their experts cost.
  virtual float least_score() const { return 0.0f; }
  // What was learned, for the next session with the same drafter and sampling; restore() takes what state() gave.
  virtual std::vector<double> state() const { return {}; }
  virtual void restore(std::span<const double>) {}
};

// spec: NAME or NAME:ARGUMENT, as on the command line ("chain:3"). Throws kInvalidRequest, naming what there is.
std::unique_ptr<Selector> make_selector(const std::string& spec);
// All names with a line about each, for --help and tests.
struct SelectorInfo {
  const char* name;
  const char* argument;  // "" or what it means
  const char* summary;
};
std::span<const SelectorInfo> selector_infos();

}  // namespace expertree
