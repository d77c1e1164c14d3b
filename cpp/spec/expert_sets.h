// Which experts rows are predicted to use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertree {

// Row 0 is the root, row i + 1 the tree's node i.
struct ExpertSets {
  int32_t n_layers = 0;  // MoE layers
  int32_t n_experts = 0;
  int32_t n_used = 0;
  std::vector<int32_t> ids;  // [rows][n_layers][n_used], each layer's ids distinct

  bool empty() const { return ids.empty(); }
  std::span<const int32_t> of(int64_t row, int32_t layer) const {
    return std::span(ids).subspan(static_cast<size_t>((row * n_layers + layer) * n_used), static_cast<size_t>(n_used));
  }
};

}  // namespace expertree
