// What an EAGLE-3 head reads for a token, for the predictor that was trained on it.
#pragma once

#include <cstdint>

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
};

}  // namespace expertree
