// A layer of the gated delta net (Yang et al., arXiv 2412.06464): projections of many rows together, the state token by
// token in order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/backend/cpu_backend.h"
#include "cpp/model/conv_inputs.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/products.h"
#include "cpp/model/recurrent_state.h"
#include "cpp/model/weights.h"

namespace expertree {

class DeltaNet {
 public:
  DeltaNet(const HyperParameters& h, CpuBackend& backend, Products& products);

  // x: the layer's normalised input of all sequences' rows; output: [x.rows()][n_embd].
  void run(const DeltaNetWeights& w, int64_t layer, std::span<const RecurrentRows> sequences, Activations& x,
           float* output);

 private:
  // Columns [column, column + n_columns) of one head's state: what one task moves.
  struct Block {
    int64_t head;
    int64_t column;
    int64_t n_columns;
  };

  void project(const DeltaNetWeights& w, Activations& x);
  void make_gates(const DeltaNetWeights& w, int64_t n);
  template <typename Taps>
  void convolve(const DeltaNetWeights& w, int64_t n, const Taps& taps);
  void apply_log(const DeltaNetWeights& w, int64_t layer, const ConvInputs& inputs, RecurrentState& state);
  void run_sequence(const DeltaNetWeights& w, int64_t layer, const RecurrentRows& rows);
  void scan_chain(int64_t layer, const RecurrentRows& rows);
  void scan_tree(int64_t layer, const RecurrentRows& rows);
  const float* gates(int64_t row) const { return gates_.data() + row * 2 * r_.n_value_heads; }
  float* outputs(int64_t row) { return outputs_.data() + row * r_.n_values(); }
  void gate_outputs(const DeltaNetWeights& w, int64_t n);

  int64_t n_blocks() const;
  Block block(int64_t task) const;
  DeltaRow row(const Block& block, int64_t mixed_row, const float* gates, float* out) const;
  void scan(const Block& block, float* state, int64_t stride, std::span<const DeltaRow> rows) const;

  RecurrentParameters r_;
  float rms_eps_;
  CpuBackend& backend_;
  Products& products_;
  std::vector<float> ones_;  // [n_channels]
  std::vector<float> query_scale_;  // [head_dim] 1 / head_dim: unit length, and attention's 1 / sqrt(head_dim)
  std::vector<float> key_scale_;  // [head_dim] 1 / sqrt(head_dim): unit length

  // Scratch of one call; n: rows of all sequences.
  std::vector<float> inputs_;  // [n][n_channels]
  std::vector<float> output_gates_;  // [n][n_values]
  std::vector<float> alpha_, beta_;  // [n][n_value_heads]
  std::vector<float> gates_;  // [n][2 * n_value_heads]: decays, then steps
  std::vector<float> mixed_;  // [rows of one sequence][n_channels]: queries, keys, values after the convolution
  std::vector<DeltaRow> rows_;  // [tasks][rows]
  std::vector<float> kept_;  // [tasks][slots + 1][head_dim][columns] states of a tree under way
  std::vector<float> outputs_;  // [n][n_values]
  Activations gated_;  // [n][n_values]
};

}  // namespace expertree
