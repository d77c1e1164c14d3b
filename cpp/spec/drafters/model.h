// Drafts with a smaller language model of the same vocabulary, dense or with experts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/model/model.h"
#include "cpp/spec/drafter.h"
#include "cpp/spec/drafters/draft_ranker.h"

namespace expertree {

struct DraftModel {
  std::shared_ptr<Model> model;
};

// The draft model keeps a sequence of its own. What the session committed since the last draft is run together with the
// root; the tree is grown on top of it. A sequence that outgrows the draft model's context is no longer drafted for.
class ModelDrafter final : public Drafter {
 public:
  // n_ctx: positions that the session may grow to.
  ModelDrafter(std::shared_ptr<const DraftModel> draft, int64_t target_vocabulary, int64_t n_ctx);

  const char* name() const override { return "model"; }
  // History tells what was committed.
  void observe(const CommittedRows&) override {}
  void truncate(int64_t) override {}
  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) override;
  uint64_t memory_bytes() const override;

 private:
  void run_history(std::span<const int32_t> history, const std::function<void()>& check_stop);
  void run_nodes(std::span<const int32_t> frontier, const TokenTree& pool);

  std::shared_ptr<const DraftModel> draft_;  // one for all sessions of the target
  std::shared_ptr<Model> model_;
  SequenceState state_;
  DraftRanker ranker_;
  std::vector<int32_t> run_;      // tokens that state_ has committed
  std::vector<int32_t> nodes_;    // pool nodes that this draft has run, in order
  ForwardResult result_;          // logits of the last pass
};

// Throws kInvalidRequest, with the entries that differ, unless both files have the same token of every id. Entries that
// both files mark as unused may differ; so may the number of such entries at the end.
void require_same_vocabulary(const std::string& draft_path, const std::string& target_path);

// argument: the draft model's file. n_ctx: the session's; 0: the target's trained context, at most 4096.
std::unique_ptr<Drafter> make_model_drafter(const std::string& argument, const std::shared_ptr<Model>& target,
                                            int64_t n_ctx);

}  // namespace expertree
