// The arithmetic of an EAGLE-3 head: its encoder, its one decoder layer with keys and values, its output.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/model/draft_heads.h"
#include "cpp/model/model.h"

namespace expertree {

// The caller holds the target's lock_backend() during every call that computes.
class Eagle3Layer {
 public:
  // One token with the state that goes with it, and its place: the row sees cells 0 .. n_prefix-1 and those of `tail`.
  struct Row {
    int32_t token;
    const float* state;  // [n_embd]
    int64_t position;
    int64_t cell;
    int64_t n_prefix;
    std::span<const int32_t> tail;
  };

  Eagle3Layer(Model& target, std::shared_ptr<const Eagle3Head> head);

  const Eagle3Head& head() const { return *head_; }
  int64_t n_features() const { return head_->fc.k; }
  int64_t n_embd() const { return head_->h.n_embd; }

  // states: [n][n_embd] from the target's features [n][n_features].
  void first_states(const float* features, int64_t n, float* states);
  // out: [n][2 * n_embd] = [norm(embedding); norm(state)] of each row.
  void read(std::span<const Row> rows, Activations* out);
  // Stores the keys and values of all rows. Rows from `first` on see their path, and give outputs [n - first][n_embd]:
  // the state of the next step, before the last norm.
  void run(std::span<const Row> rows, int64_t first, float* outputs);
  // logits: [n][draft vocabulary] of outputs [n][n_embd].
  void logits(const float* outputs, int64_t n, float* logits);

  uint64_t memory_bytes() const;

 private:
  void reserve_cells(int64_t n_cells);
  void store_keys_values(std::span<const Row> rows);
  void attend(std::span<const Row> rows, int64_t first);
  void feed_forward(int64_t n, float* outputs);

  CpuBackend& backend_;
  std::shared_ptr<const Eagle3Head> head_;
  Rope rope_;
  std::vector<std::vector<float>> keys_, values_;  // by KV head: [cell][head_dim]
  int64_t n_cells_ = 0;

  // Scratch of one call.
  Activations features_;          // [n][n_features]
  Activations inputs_;            // [n][2 * n_embd]
  std::vector<int32_t> all_rows_;  // 0, 1, ..
  std::vector<float> q_, k_, v_;
  std::vector<float> cos_, sin_;  // [n][n_rot / 2]
  Activations attended_;          // [n][n_heads * head_dim_v]
  std::vector<float> mixed_;      // [n][n_embd]
  Activations normed_;            // [n][n_embd]
  std::vector<float> gate_, up_;  // [n][n_ff]
  Activations hidden_;            // [n][n_ff]
};

}  // namespace expertree
