// Drafts with the block that the model itself carries for it (multi-token prediction): qwen35moe, glm4moe and their kin.
// The tree grows as EAGLE-2's does (arXiv 2406.16858).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpp/model/draft_heads.h"
#include "cpp/model/model.h"
#include "cpp/model/sequence_state.h"
#include "cpp/spec/drafter.h"
#include "cpp/spec/drafters/draft_ranker.h"

namespace expertree {

// Entry p of the block's own KV cache is the token at position p with the model's normalised output at p - 1 (zeros at the
// start), and predicts the token at p + 1. The root is such an entry; deeper nodes take the block's own output for their
// parent instead.
class MtpDrafter final : public Drafter {
 public:
  // n_ctx: positions that the session may grow to.
  MtpDrafter(std::shared_ptr<Model> target, std::shared_ptr<const NextnBlock> block, int64_t n_ctx);

  const char* name() const override { return "mtp"; }
  FeatureRequest features() const override { return {{}, true}; }
  void observe(const CommittedRows& rows) override;
  void truncate(int64_t length) override;
  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) override;
  uint64_t memory_bytes() const override;

  // Of every expansion of the last draft, root first; for tests.
  struct Expansion {
    int32_t token;
    int32_t parent;  // expansion of the parent; -1: the root's own
    std::vector<float> logits;
  };
  void keep_expansions(bool keep) { keep_expansions_ = keep; }
  const std::vector<Expansion>& expansions() const { return kept_; }

 private:
  int64_t n_embd() const { return target_->hyperparameters().n_embd; }
  int64_t n_observed() const { return std::ssize(states_) / n_embd(); }
  const float* state_before(int64_t position) const;
  void make_inputs(std::span<const int32_t> tokens, std::span<const float* const> states);
  void run(const TokenBatch& batch, ForwardRequest request);
  void run_history(std::span<const int32_t> history, const std::function<void()>& check_stop);
  void run_nodes(std::span<const int32_t> frontier, const TokenTree& pool);

  std::shared_ptr<Model> target_;
  std::shared_ptr<const NextnBlock> block_;
  SequenceState state_;
  DraftRanker ranker_;
  std::vector<float> states_;  // [observed positions][n_embd], the model's outputs
  std::vector<float> zeros_;  // [n_embd]
  std::vector<int32_t> run_;  // tokens of the entries that state_ has committed

  std::vector<int32_t> nodes_;  // pool nodes that this draft has run, in order
  TokenBatch batch_;  // of them
  std::vector<float> root_state_;  // [n_embd] the block's output for the root
  std::vector<float> node_states_;  // [nodes][n_embd]
  Activations pairs_;  // [rows][2 * n_embd]
  std::vector<float> inputs_;  // [rows][n_embd]
  ForwardResult result_;  // of the last pass
  bool keep_expansions_ = false;
  std::vector<Expansion> kept_;
};

std::unique_ptr<Drafter> make_mtp_drafter(const std::shared_ptr<Model>& target, int64_t n_ctx);

}  // namespace expertree
