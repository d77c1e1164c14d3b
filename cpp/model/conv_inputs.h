// The inputs of a causal convolution along each row's own path: this pass's rows, rows of earlier passes, the sequence.
#pragma once

#include <cstdint>

#include "cpp/model/recurrent_state.h"

namespace expertree {

// Rows [begin, begin + n) of the pending batch in one recurrent layer.
class ConvInputs {
 public:
  // inputs: float [n][r.n_channels] of the rows, which must stay. Rows that leave terms leave these.
  ConvInputs(const RecurrentParameters& r, RecurrentState& state, int64_t layer, int64_t begin, int64_t n,
             const float* inputs);

  // taps: [n_taps], the inputs that row `row` of the batch sees, oldest first, its own last. A chain is asked for rows of
  // this pass; a tree for any row up to its end.
  void taps(int64_t row, const float** taps) const;
  // The same of the i-th committed term.
  void committed_taps(int64_t i, const float** taps) const;
  // Once all taps have been used: what the next pass over a chain, and a checkpoint, need of the inputs.
  void carry();

 private:
  const float* chain_input(int64_t row) const;  // of the batch; negative: before it
  void copy_last(int64_t row, float* out) const;

  const RecurrentParameters& r_;
  RecurrentState& state_;
  int64_t layer_;
  int64_t begin_;
  int64_t n_;
  const float* inputs_;
};

}  // namespace expertree
