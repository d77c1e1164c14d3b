// What the graph of a call of dense matrices depends on (call_graphs.h).
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "cuda/runtime/attention_buffers.h"

namespace expertree::cuda {

// A part of what a call does.
struct CallWork {
  enum class Kind : uint8_t { kProduct, kFeedForward, kBlock, kMixture, kResidual, kBest };
  Kind kind;
  // A matrix; gate, up and down; a block; its number; nothing; how many logits.
  int32_t first = 0, second = 0, third = 0;

  auto operator<=>(const CallWork&) const = default;
};

struct CallShape {
  int64_t n_rows = 0;  // with room
  int64_t k = 0;
  bool sends_tables = false;
  TableShape tables;
  int64_t n_positions = 0;  // that attention's grid is made for
  std::vector<CallWork> work;

  auto operator<=>(const CallShape&) const = default;
  // A mixture goes with its block.
  int64_t size() const {
    return std::ranges::count_if(work, [](const CallWork& part) { return part.kind != CallWork::Kind::kMixture; });
  }
};

}  // namespace expertree::cuda
