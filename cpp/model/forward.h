// One pass of a batch of rows through all layers. Prefill, plain decoding and trees are this same code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/model/delta_net.h"
#include "cpp/model/model.h"
#include "cpp/model/sequence_state.h"
#include "cpp/model/short_conv.h"

namespace expertree {

class Forward {
 public:
  explicit Forward(Model& model);

  void run(SequenceState& state, const TokenBatch& batch, const ForwardRequest& request, ForwardResult* result);

 private:
  // Rows [begin, begin + n) of the batch.
  struct Chunk {
    SequenceState& state;
    const TokenBatch& batch;
    int64_t begin;
    int64_t n;
    int64_t at;           // row of the result that the first of these is
    const float* inputs;  // [n][n_embd]; null: embeddings
    ForwardResult* routing;  // null: do not record
    const std::function<void()>& check_stop;
    int64_t most_experts;  // 0: any
  };

  void embed(const Chunk& chunk);
  void rotary_angles(const Chunk& chunk);
  void attention(const Chunk& chunk, int64_t layer);
  void project(const Chunk& chunk, int64_t layer);
  void leave_keys_values(const Chunk& chunk, int64_t layer);
  void store_keys_values(const Chunk& chunk, int64_t layer);
  void attend(const Chunk& chunk, int64_t layer);
  void gate_attention(int64_t n);
  // From one head's query to the next one's.
  int64_t query_stride() const { return h_.head_dim_k * (h_.gated_attention ? 2 : 1); }
  void mix(const Chunk& chunk, int64_t layer);
  void feed_forward(const FeedForwardWeights& w, int64_t n_ff);
  void mixture(const Chunk& chunk, int64_t layer);
  void route(const Chunk& chunk, int64_t layer);
  void drop_light_experts(const Chunk& chunk);
  void hint_next_layer(const Chunk& chunk, int64_t layer);
  void run_experts(int64_t moe_layer, std::span<const int32_t> experts);
  void shared_expert(const Chunk& chunk, const MoeWeights& w);
  void add_to_residual(int64_t n, const float* y);
  void check_finite(const Chunk& chunk, int64_t layer) const;
  void logits(const Chunk& chunk, LogitRows rows, ForwardResult* result);
  void prepare_hidden(int64_t n_rows, const ForwardRequest& request, ForwardResult* result) const;
  void tap(const Chunk& chunk, int64_t layer, std::span<const int32_t> tap_layers, ForwardResult* result) const;
  void last_hidden(const Chunk& chunk, ForwardResult* result);

  Model& m_;
  const HyperParameters& h_;
  CpuBackend& backend_;

  std::unique_ptr<DeltaNet> delta_net_;    // nullptr: the model has no such layers
  std::unique_ptr<ShortConv> short_conv_;

  // Scratch of one chunk; grows to the largest chunk seen and stays.
  std::vector<float> residual_;   // [n][n_embd]
  std::vector<float> cos_, sin_;  // [n][n_rot / 2]
  Activations normed_;            // [n][n_embd]
  std::vector<float> q_, k_, v_;  // [n][projection]
  Activations attended_;          // [n][n_heads * head_dim_v]
  std::vector<float> output_;     // [n][n_embd]
  std::vector<float> gate_, up_;  // dense: [n][n_ff]; experts: [n * n_used][n_ff of one]
  Activations hidden_;            // SwiGLU of the two
  std::vector<float> scores_;     // [n][n_experts] router probabilities
  std::vector<int32_t> chosen_;   // [n][n_used], best first
  std::vector<float> weights_;    // [n][n_used]
  std::vector<float> outputs_;    // [n * n_used][n_embd], each expert's output kept apart
  std::vector<float> shared_gate_;  // [n]
  std::vector<int32_t> group_begin_, group_rows_, group_slots_;  // rows and slots by expert
  Activations guessed_;                // [n][n_embd] what the next layer's router is asked about
  std::vector<float> guessed_scores_;  // [n][n_experts]
  std::vector<int32_t> wave_rows_;  // 0, 1, ...: rows of gate_, up_ and hidden_ while a wave of experts runs
};

}  // namespace expertree
