// Sizes of the model that a profile speaks of.
#pragma once

#include <cstdint>

namespace expertree {

struct ProfileShape {
  int64_t n_layers = 0;
  int64_t n_moe_layers = 0;
  int64_t n_experts = 0;
  int64_t n_used = 0;  // experts of a token
};

}  // namespace expertree
