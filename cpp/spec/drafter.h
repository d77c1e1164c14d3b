// Plug point: who proposes the tree. One drafter serves one session; it sees every token that the session commits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpp/sample/sampler.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

struct DraftLimits {
  int32_t max_nodes = 32;
  int32_t max_depth = 4;
  int32_t top_k = 8;  // children per expanded node, and nodes expanded per depth
  float least_score = 0.0f;  // nodes that score less would not be verified, so need not be drafted
  std::function<void()> check_stop;  // asked now and then during long runs; may throw
};

// Hidden states of the target that a drafter asks for.
struct FeatureRequest {
  std::vector<int32_t> tap_layers;  // the inputs of these layers (the residual stream), concatenated in this order
  bool last_hidden = false;         // the normalised output of the last layer

  bool empty() const { return tap_layers.empty() && !last_hidden; }
};

// Of n consecutive positions of the sequence that the target has just run and the session has kept.
struct CommittedRows {
  std::span<const int32_t> tokens;  // [n]
  int64_t first_position;
  const float* taps = nullptr;         // [n][tap_layers * n_embd]
  const float* last_hidden = nullptr;  // [n][n_embd]
};

class HeadInputs;

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual const char* name() const = 0;
  virtual FeatureRequest features() const { return {}; }

  // Tokens that have been run and kept, in order, each position once; the root comes later, when it has been run.
  virtual void observe(const CommittedRows& rows) = 0;
  // Forgets what was observed from this position on.
  virtual void truncate(int64_t length) = 0;

  // A tree below the root. `history` is all tokens of the session, the root the last of them; all before it have been
  // observed. `sampler` is the session's own: its rank() couples the draft with the target's choice (METHODS: coupled
  // drafting). An empty tree is a fine answer. The tree stays within `limits`.
  virtual TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) = 0;

  // What a predictor of expert sets may read from this drafter, as long as it lives; nullptr: nothing.
  virtual HeadInputs* head_inputs() { return nullptr; }
  // Weights and state, the target's own left out.
  virtual uint64_t memory_bytes() const { return 0; }
};

}  // namespace expertree
