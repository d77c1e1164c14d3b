// The true sets, from whoever knows them: a replay of a recorded run. For analysis, so it has no name in the table.
#pragma once

#include "cpp/spec/predictor.h"

namespace expertree {

class OraclePredictor final : public Predictor {
 public:
  const char* name() const override { return "oracle"; }

  // Of the root and the nodes of the tree that is asked about next.
  void feed(ExpertSets sets) { sets_ = std::move(sets); }

  // Throws kInvalidRequest when what was fed has not the tree's rows.
  ExpertSets predict(int32_t root_token, const TokenTree& tree) override;
  void observe(std::span<const int32_t>, const ExpertSets&) override {}

 private:
  ExpertSets sets_;
};

}  // namespace expertree
