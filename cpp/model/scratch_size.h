// What a forward pass takes beside weights and caches, reckoned before it runs.
#pragma once

#include <cstdint>

#include "cpp/model/hyperparameters.h"

namespace expertree {

// Bytes, an upper bound: activations of the largest chunk of an n_ctx token session, and logits of a tree.
uint64_t scratch_bytes(const HyperParameters& h, int64_t n_ctx);

}  // namespace expertree
