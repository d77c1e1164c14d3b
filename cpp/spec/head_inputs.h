// What an EAGLE-3 head reads and makes for a token, for predictors of experts.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

class HeadInputs {
 public:
  virtual ~HeadInputs() = default;
  virtual int64_t n_inputs() const = 0;
  // Rows [norm(embedding); norm(state)] of the root (row 0) and of every node i (row i + 1). A node whose parent the
  // drafter has not run takes the state of its nearest ancestor that it has. False, and no rows: nothing was observed
  // yet. The tree may come from any drafter.
  virtual bool read_inputs(int32_t root_token, const TokenTree& tree, Activations* out) = 0;
  virtual int64_t n_state() const = 0;
  // Rows [n_state] of the root and of every node: the head's own hidden state (before its last norm) once it has read
  // that token, else that of the nearest ancestor that it has read. False as above.
  virtual bool read_states(int32_t root_token, const TokenTree& tree, std::vector<float>* out) = 0;
};

}  // namespace expertree
