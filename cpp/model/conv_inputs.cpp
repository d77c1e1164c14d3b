#include "cpp/model/conv_inputs.h"

#include <algorithm>
#include <vector>

namespace expertree {

ConvInputs::ConvInputs(const RecurrentParameters& r, RecurrentState& state, int64_t layer, int64_t begin, int64_t n,
                       const float* inputs)
    : r_(r), state_(state), layer_(layer), begin_(begin), n_(n), inputs_(inputs) {
  for (int64_t i = 0; state.leaves_terms() && i < n; ++i) {
    std::copy_n(inputs + i * r.n_channels, r.n_channels, state.pending_terms(layer, begin + i));
  }
}

const float* ConvInputs::chain_input(int64_t row) const {
  if (row >= begin_) return inputs_ + (row - begin_) * r_.n_channels;
  if (begin_ == 0) return state_.committed_input(layer_, -1 - row);
  return state_.tip_inputs(layer_) + (r_.n_taps - 1 - (begin_ - row)) * r_.n_channels;
}

void ConvInputs::taps(int64_t row, const float** taps) const {
  if (state_.is_chain()) {
    for (int64_t t = 0; t < r_.n_taps; ++t) taps[t] = chain_input(row - (r_.n_taps - 1 - t));
    return;
  }
  int64_t before = 0;  // places before the tree
  for (int64_t t = r_.n_taps; t-- > 0;) {
    if (row >= 0) {
      taps[t] = state_.pending_terms(layer_, row);
      row = state_.parents()[static_cast<size_t>(row)];
    } else {
      taps[t] = state_.committed_input(layer_, before++);
    }
  }
}

void ConvInputs::committed_taps(int64_t i, const float** taps) const {
  const int64_t back = state_.n_log() - 1 - i;
  for (int64_t t = 0; t < r_.n_taps; ++t) taps[t] = state_.committed_input(layer_, back + r_.n_taps - 1 - t);
}

// The n_taps - 1 inputs up to that of `row`, oldest first.
void ConvInputs::copy_last(int64_t row, float* out) const {
  std::vector<float> last(static_cast<size_t>((r_.n_taps - 1) * r_.n_channels));  // out may hold some of them
  for (int64_t t = 0; t < r_.n_taps - 1; ++t) {
    std::copy_n(chain_input(row - (r_.n_taps - 2 - t)), r_.n_channels, last.begin() + t * r_.n_channels);
  }
  std::ranges::copy(last, out);
}

void ConvInputs::carry() {
  if (!state_.is_chain()) return;
  const int64_t checkpoint = state_.checkpoint_row();
  if (checkpoint >= begin_ && checkpoint < begin_ + n_) copy_last(checkpoint, state_.checkpoint_inputs(layer_));
  copy_last(begin_ + n_ - 1, state_.tip_inputs(layer_));
}

}  // namespace expertree
