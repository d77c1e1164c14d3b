// One pass of a batch of rows through all layers. Prefill, plain decoding and trees are this same code.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/experts/vram_step.h"
#include "cpp/model/attention_rows.h"
#include "cpp/model/delta_net.h"
#include "cpp/model/model.h"
#include "cpp/model/row_chunk.h"
#include "cpp/model/short_conv.h"

namespace expertree {

class Forward {
 public:
  // Of one chunk: bounds the scratch; large enough that weights are read few times in a long prefill.
  static constexpr int64_t kChunkRows = 512;

  explicit Forward(Model& model);

  void run(std::span<const SequencePass> sequences);

 private:
  using Piece = RowPiece;
  using Chunk = RowChunk;
  enum class Queries : uint8_t { kNone, kAll };  // made beside keys and values
  // Sin and cos of a chunk's positions.
  struct Angles {
    const Rope* rope = nullptr;
    std::vector<float> cos, sin;  // [n][n_pairs]
  };

  const LayerWeights& weights(int64_t layer) const { return m_.weights_.layers[static_cast<size_t>(layer)]; }
  void run_all(std::span<const SequencePass> sequences);
  static void size_result(const Model& model, const SequencePass& pass);
  void run_chunk(const Chunk& all_rows);
  Chunk leave_unasked_rows(const Chunk& chunk, int64_t layer);
  void embed(const Chunk& chunk);
  void rotary_angles(const Chunk& chunk);
  void norm(const float* x, const FloatVector& weight, const FloatVector& bias, Activations* y) const;
  // Adds what attention or the feed-forward part left in output_.
  void add_to_residual(const Chunk& chunk, const FloatVector& post_norm);

  int64_t mix(const Chunk& chunk, int64_t layer, bool silent);
  void attention(const Chunk& chunk, int64_t layer);
  void prepare_device_rows(const Chunk& chunk);
  bool has_device_block(int64_t layer) const { return use_device_rows_ && products_.block_of(layer) >= 0; }
  DeviceAttentionRows rows_for_device(const Chunk& chunk);
  int64_t end_of_trip(const Chunk& chunk, int64_t layer, bool silent) const;
  static bool is_tapped(const Chunk& chunk, int64_t layer);
  bool mixes_there(const Chunk& chunk, int64_t layer) const;
  bool ends_there(const Chunk& chunk, int64_t layer) const;
  bool ends_in_logits(const Chunk& chunk, int64_t first) const;
  int64_t trip_to_device(const Chunk& chunk, int64_t layer, bool silent);
  bool are_routers_sound(std::span<const float> outputs, int64_t room) const;
  void take_block(const Chunk& chunk, int64_t layer, const float* outputs);
  void note_mixture(const Chunk& chunk, int64_t layer);
  void gather_cells(const Chunk& chunk, int64_t layer);
  void scatter_cells(const Chunk& chunk, int64_t layer, const float* keys, const float* values);
  void leave_keys_values(const Chunk& chunk, int64_t layer, Queries queries);
  void gate_attention(int64_t n, int64_t width);
  void project(const Chunk& chunk, int64_t layer, Queries queries);
  void store_keys_values(const Chunk& chunk, int64_t layer, Queries queries);
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
  std::vector<int32_t> find_experts(const Chunk& chunk, int64_t layer);
  std::vector<int64_t> rows_of(std::span<const int32_t> experts) const;
  void ask_router(const MoeWeights& w, Activations& x, std::vector<float>* scores);
  void router_scores(const Chunk& chunk, int64_t layer);
  void read_router_input(int64_t n, const LayerWeights& w, Activations* y) const;
  void route(const Chunk& chunk, int64_t layer);
  void choose_all(const Chunk& chunk, int64_t layer);
  [[noreturn]] void refuse_scores(int64_t layer) const;
  void gate(float* scores) const;
  void drop_light_experts(const Piece& piece);
  void choose(const MoeWeights& w, const float* scores, int32_t* ids, float* weights) const;
  void group_by_expert(const Chunk& chunk);
  void record_rows(const Chunk& chunk) const;
  void record_routing(const Chunk& chunk, int64_t moe_layer) const;
  void count_uses(const Chunk& chunk, int64_t moe_layer) const;
  ExpertLease ask_for_experts(const Chunk& chunk, int64_t layer, std::span<const int32_t> used,
                              std::span<const int32_t> on_device);
  static std::span<const int32_t> next_wave(const Chunk& chunk, int64_t layer, ExpertLease* lease);
  Activations& expert_inputs(const Chunk& chunk, const MoeWeights& w);
  void hint_next_layer(const Chunk& chunk, int64_t layer);
  void mixture_with_device(const Chunk& chunk, int64_t layer, std::span<const int32_t> used);
  void run_on_device(VramStep& step, Activations& inputs, std::span<const int32_t> experts);
  void gather_from_device(VramStep& step);
  void begin_beside(const Chunk& chunk, int64_t layer);
  void end_beside(const Chunk& chunk, int64_t layer);
  void run_experts(const MoeWeights& w, Activations& inputs, std::span<const int32_t> experts);
  void sum_experts(const Chunk& chunk, const MoeWeights& w);

  void check_finite(const Chunk& chunk, int64_t layer) const;
  int32_t best_that_suffice(std::span<const SequencePass> sequences) const;
  void size_logits_of(std::span<const SequencePass> sequences);
  static std::vector<const Piece*> pieces_with_logits(const Chunk& chunk);
  void logits(const Chunk& chunk);
  static int64_t first_logit(const Piece& piece, int64_t width);
  void whole_logits(const float* inputs, int64_t n, std::span<const Piece* const> asked);
  void give_logits(std::span<const Piece* const> asked, int64_t width) const;
  void scale_logits(int64_t n, float* logits) const;
  void prepare_hidden(const SequencePass& pass) const;
  void tap(const Chunk& chunk, int64_t layer) const;
  void last_hidden(const Chunk& chunk);

  Model& m_;
  const HyperParameters& h_;
  CpuBackend& backend_;
  Products& products_;

  std::unique_ptr<DeltaNet> delta_net_;  // nullptr: the model has no such layers
  std::unique_ptr<ShortConv> short_conv_;

  // Scratch of one chunk; grows to the largest chunk seen and stays.
  std::vector<float> residual_, output_;  // [n][n_embd]
  Angles angles_, angles_windowed_;
  Activations normed_;            // [n][n_embd]
  std::vector<float> q_, k_, v_;  // [n][projection]
  std::vector<float> attention_gate_;  // [n][n_heads * head_dim_v]
  std::vector<std::pair<int64_t, int64_t>> attention_tasks_;  // first row, number of rows
  AttentionRows device_rows_;
  bool use_device_rows_ = false, has_sent_rows_ = false;  // attention may run on a device; it knows the chunk's rows
  bool has_logits_ = false, one_by_one_ = false;  // a trip ended in logits; something is wrong with the rows
  std::vector<BlockRun> trip_;
  const DeviceBlock* block_ = nullptr;  // what a device has run of the layer; nullptr: nothing as a whole
  bool is_layer_done_ = false;  // all of it
  std::vector<int32_t> first_seen_;  // [n]
  std::vector<float> query_scales_, shared_gate_;  // [n]
  std::vector<CellFill> fills_;      // cells that the device lacks, one entry a piece
  std::vector<std::byte> filled_;    // keys and values of all of them
  Activations attended_;          // [n][n_heads * head_dim_v]
  Activations compressed_;        // latent attention: [n][q_rank], then [n * n_heads][n_nope]
  Activations latent_values_;     // [n * n_heads][kv_rank]
  std::vector<int32_t> head_rows_;  // [n_heads][n]: rows of one head in [n * n_heads]
  std::vector<float> head_inputs_;  // [rows asked for][n_embd], where they do not lie side by side
  std::vector<float> head_outputs_;  // [rows asked for][n_vocab], of several sequences, or [..][n_best_]
  int32_t n_best_ = 0;               // logits of a row that the pass is given; 0: all
  std::vector<int32_t> best_ids_;    // [rows asked for][n_best_]
  std::vector<RecurrentRows> recurrent_rows_;  // of the chunk's pieces
  std::vector<float> gate_, up_;  // dense: [n][n_ff]; experts: [n * n_used][n_ff of one]
  Activations hidden_;            // the gated unit of the two
  Activations router_input_;      // [n][n_embd] where the router reads something of its own
  std::vector<float> scores_, guessed_scores_;  // [n][n_experts]
  std::vector<int32_t> chosen_;   // [n][n_used], best first
  std::vector<float> weights_;    // [n][n_used]
  Activations expert_input_;      // [n][n_embd], or [n * n_used][n_embd] weighted, where it is not normed_
  std::vector<float> outputs_;    // [n * n_used][n_embd], each expert's output kept apart
  bool beside_on_device_ = false;  // what runs beside the experts
  std::vector<int32_t> group_begin_, group_rows_, group_slots_;  // rows and slots by expert
  std::vector<int32_t> on_device_;  // experts of the batch that runs on a device, in the order of its outputs
  Activations guessed_;                // [n][n_embd] what the next layer's router is asked about
  std::vector<int32_t> wave_rows_;  // 0, 1, ...: rows of gate_, up_ and hidden_ while a wave of experts runs
};

}  // namespace expertree
