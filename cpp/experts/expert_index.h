// Where the bytes of every expert lie in the model's files. Built by the architecture, used by whoever holds experts.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/tensor/dtype.h"

namespace expertree {

// One projection of one expert: `rows` rows of `k` elements, contiguous.
struct ExpertSlice {
  int32_t file_tensor;  // index into GgufReader::tensors()
  uint64_t offset;      // bytes from the start of that tensor
  uint64_t size_bytes;
};

enum ExpertProjection { kGate = 0, kUp = 1, kDown = 2, kNumProjections = 3 };

// A MoE layer. A projection has one format and shape for all experts of the layer; the three may differ.
struct ExpertLayer {
  struct Projection {
    DType dtype;
    int64_t rows;
    int64_t k;
    std::vector<ExpertSlice> experts;  // [n_experts]
    std::vector<float> scales;         // [n_experts], multiply the outputs; empty: all 1
  };
  int32_t layer;  // of the model
  Projection projections[kNumProjections];
};

using ExpertIndex = std::vector<ExpertLayer>;  // one entry per MoE layer, in order

}  // namespace expertree
