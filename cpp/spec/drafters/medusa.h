// Drafts with Medusa heads (Cai et al., arXiv 2401.10774): each depth has a head of its own, and all of them read the
// target's last hidden state, whatever the path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpp/model/draft_heads.h"
#include "cpp/model/model.h"
#include "cpp/spec/drafter.h"
#include "cpp/spec/drafters/draft_ranker.h"

namespace expertree {

class MedusaDrafter final : public Drafter {
 public:
  MedusaDrafter(std::shared_ptr<Model> target, std::shared_ptr<const MedusaHeads> heads);

  const char* name() const override { return "medusa"; }
  FeatureRequest features() const override { return {{}, true}; }
  void observe(const CommittedRows& rows) override;
  void truncate(int64_t length) override;
  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) override;
  uint64_t memory_bytes() const override;

 private:
  void run_heads(int64_t n);

  std::shared_ptr<Model> target_;
  std::shared_ptr<const MedusaHeads> heads_;
  DraftRanker ranker_;
  int64_t n_observed_ = 0;
  std::vector<float> hidden_;  // [n_embd] of the last observed position; empty: forgotten
  Activations input_;          // [1][n_embd]
  std::vector<float> inner_;   // [heads][n_embd]
  Activations states_;         // [heads][n_embd]
  std::vector<float> logits_;  // [heads][draft vocabulary]
};

// argument: the heads' file.
std::unique_ptr<Drafter> make_medusa_drafter(const std::string& argument, const std::shared_ptr<Model>& target);

}  // namespace expertree
