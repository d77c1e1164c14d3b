// Plug point: which experts will a draft token need.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

class Predictor {
 public:
  virtual ~Predictor() = default;
  virtual const char* name() const = 0;

  // Sets of the root and of every node; empty when nothing is known yet.
  virtual ExpertSets predict(int32_t root_token, const TokenTree& tree) = 0;
  // The experts that n committed tokens were found to use: ids [n][n_layers][n_used].
  virtual void observe(std::span<const int32_t> tokens, const ExpertSets& used) = 0;
};

}  // namespace expertree
