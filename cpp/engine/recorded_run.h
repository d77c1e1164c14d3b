// A recorded sequence from which any selector's steps can be worked out: at every position of its text a tree was
// drafted, and what all of its nodes route to was written down.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

struct RecordedRun {
  // The root of position i is text[i]; what the model says after it is text[i + 1].
  struct Position {
    TokenTree tree;
    ExpertSets routed;     // what the root and the nodes do use
    ExpertSets predicted;  // what a predictor said; may be empty
  };

  ExpertSets prompt;          // what each of its tokens uses
  std::vector<int32_t> text;  // after the prompt; more than positions.size() tokens
  std::vector<Position> positions;

  // Throws kInvalidRequest, naming what is wrong, for anything that no recording gives.
  void check(int64_t n_vocab) const;
};

// What a step from position `at` keeps: the walk of the text through the selected nodes.
struct ReplayedPath {
  std::vector<int32_t> accepted;  // nodes, in order
  int64_t n_tokens = 0;           // emitted; fewer than accepted + 1 where the text ends
};
ReplayedPath walk(const RecordedRun& run, int64_t at, std::span<const int32_t> selected);

}  // namespace expertree
