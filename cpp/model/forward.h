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
#include "cpp/model/short_conv.h"
#include "cpp/profile/step_recorder.h"

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
    int64_t at;            // row of the result that the first of these is
    const float* inputs;   // [n][n_embd]; null: embeddings
    ForwardResult* routing;  // null: do not record
    const std::function<void()>& check_stop;
    int64_t most_experts;  // 0: any
    StepRecorder* recorder;  // nullptr: no profile

    int64_t position(int64_t r) const { return state.n_committed() + batch.depths[static_cast<size_t>(begin + r)]; }
  };
  // Sin and cos of a chunk's positions.
  struct Angles {
    const Rope* rope = nullptr;
    std::vector<float> cos, sin;  // [n][n_pairs]
  };

  const LayerWeights& weights(int64_t layer) const { return m_.weights_.layers[static_cast<size_t>(layer)]; }
  void embed(const Chunk& chunk);
  void rotary_angles(const Chunk& chunk);
  void norm(const float* x, const FloatVector& weight, const FloatVector& bias, Activations* y) const;
  // Adds what attention or the feed-forward part left in output_.
  void add_to_residual(const Chunk& chunk, const FloatVector& post_norm);

  void mix(const Chunk& chunk, int64_t layer);
  void attention(const Chunk& chunk, int64_t layer);
  void leave_keys_values(const Chunk& chunk, int64_t layer);
  void gate_attention(int64_t n, int64_t width);
  void project(const Chunk& chunk, int64_t layer);
  void store_keys_values(const Chunk& chunk, int64_t layer);
  void normalize_heads(const FloatVector& weight, int64_t n_heads, int64_t head_dim, float* x) const;
  void turn_heads(int64_t layer, int64_t row, int64_t n_heads, int64_t stride, float* x) const;
  float query_scale(const Chunk& chunk, int64_t layer, int64_t row) const;
  void attend(const Chunk& chunk, int64_t layer);
  int64_t first_seen(int64_t layer, int64_t position) const;
  void latent_attention(const Chunk& chunk, int64_t layer);
  void project_latent(const Chunk& chunk, int64_t layer);
  void store_latent(const Chunk& chunk, int64_t layer);
  void leave_latent(const Chunk& chunk, int64_t layer);

  void feed_forward_part(const Chunk& chunk, int64_t layer);
  void feed_forward(const FeedForwardWeights& w, int64_t n_ff);
  void gated_unit(int64_t n_rows, int64_t n_ff);
  void mixture(const Chunk& chunk, int64_t layer);
  void ask_router(const MoeWeights& w, Activations& x, std::vector<float>* scores);
  void router_scores(const Chunk& chunk, int64_t layer);
  void read_router_input(int64_t n, const LayerWeights& w, Activations* y) const;
  void route(const Chunk& chunk, int64_t layer);
  void gate(float* scores) const;
  void drop_light_experts(const Chunk& chunk);
  void choose(const MoeWeights& w, const float* scores, int32_t* ids, float* weights) const;
  void group_by_expert(const Chunk& chunk);
  ExpertLease ask_for_experts(const Chunk& chunk, int64_t layer, std::span<const int32_t> experts);
  Activations& expert_inputs(const Chunk& chunk, const MoeWeights& w);
  void hint_next_layer(const Chunk& chunk, int64_t layer);
  void run_beside(const Chunk& chunk, int64_t layer);
  void run_experts(const MoeWeights& w, Activations& inputs, std::span<const int32_t> experts);
  void sum_experts(const Chunk& chunk, const MoeWeights& w);

  void check_finite(const Chunk& chunk, int64_t layer) const;
  void logits(const Chunk& chunk, LogitRows rows, ForwardResult* result);
  void scale_logits(int64_t n, float* logits) const;
  void prepare_hidden(int64_t n_rows, const ForwardRequest& request, ForwardResult* result) const;
  void tap(const Chunk& chunk, int64_t layer, std::span<const int32_t> tap_layers, ForwardResult* result) const;
  void last_hidden(const Chunk& chunk, ForwardResult* result);

  Model& m_;
  const HyperParameters& h_;
  CpuBackend& backend_;

  std::unique_ptr<DeltaNet> delta_net_;  // nullptr: the model has no such layers
  std::unique_ptr<ShortConv> short_conv_;

  // Scratch of one chunk; grows to the largest chunk seen and stays.
  std::vector<float> residual_;   // [n][n_embd]
  Angles angles_, angles_windowed_;
  Activations normed_;            // [n][n_embd]
  std::vector<float> q_, k_, v_;  // [n][projection]
  std::vector<float> attention_gate_;  // [n][n_heads * head_dim_v]
  Activations attended_;          // [n][n_heads * head_dim_v]
  Activations compressed_;        // latent attention: [n][q_rank], then [n * n_heads][n_nope]
  Activations latent_values_;     // [n * n_heads][kv_rank]
  std::vector<int32_t> head_rows_;  // [n_heads][n]: rows of one head in [n * n_heads]
  std::vector<float> output_;     // [n][n_embd]
  std::vector<float> gate_, up_;  // dense: [n][n_ff]; experts: [n * n_used][n_ff of one]
  Activations hidden_;            // the gated unit of the two
  Activations router_input_;      // [n][n_embd] where the router reads something of its own
  std::vector<float> scores_;     // [n][n_experts]
  std::vector<int32_t> chosen_;   // [n][n_used], best first
  std::vector<float> weights_;    // [n][n_used]
  Activations expert_input_;      // [n][n_embd], or [n * n_used][n_embd] weighted, where it is not normed_
  std::vector<float> outputs_;    // [n * n_used][n_embd], each expert's output kept apart
  std::vector<float> shared_gate_;  // [n]
  std::vector<int32_t> group_begin_, group_rows_, group_slots_;  // rows and slots by expert
  Activations guessed_;                // [n][n_embd] what the next layer's router is asked about
  std::vector<float> guessed_scores_;  // [n][n_experts]
  std::vector<int32_t> wave_rows_;  // 0, 1, ...: rows of gate_, up_ and hidden_ while a wave of experts runs
};

}  // namespace expertree
