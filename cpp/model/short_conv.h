// A short convolution layer (LFM2): y = out(c * conv(b * x)), where b, c and x are projections of the input.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/backend/cpu_backend.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/products.h"
#include "cpp/model/recurrent_state.h"
#include "cpp/model/weights.h"

namespace expertree {

class ShortConv {
 public:
  ShortConv(const HyperParameters& h, CpuBackend& backend, Products& products)
      : r_(h.recurrent), backend_(backend), products_(products) {}

  // x: the layer's normalised input of all sequences' rows; output: [x.rows()][n_embd].
  void run(const ShortConvWeights& w, int64_t layer, std::span<const RecurrentRows> sequences, Activations& x,
           float* output);

 private:
  RecurrentParameters r_;
  CpuBackend& backend_;
  Products& products_;
  std::vector<float> projected_;  // [n][3 * n_embd]: b, c, x
  std::vector<float> inputs_;     // [n][n_embd]: b * x
  Activations gated_;             // [n][n_embd]
};

}  // namespace expertree
