// All experts in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpp/base/memory.h"
#include "cpp/experts/expert_index.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/tensor/weight.h"

namespace expertree {

class ResidentExperts {
 public:
  // Bytes that holding all experts of the index takes.
  static uint64_t bytes_needed(const ExpertIndex& index);

  // Reads every expert; `advance(bytes)` after each piece, which may throw to stop. Throws kDevice, kOutOfMemory.
  ResidentExperts(const ExpertIndex& index, const GgufReader& reader, const std::function<void(uint64_t)>& advance);

  // The weights of one expert's projection. moe_layer counts MoE layers only.
  WeightMatrix weights(int64_t moe_layer, int64_t expert, ExpertProjection projection) const;

 private:
  struct Projection {
    DType dtype;
    int64_t rows;
    int64_t k;
    uint64_t stride_bytes;  // from expert to expert, a multiple of 64
    const std::byte* data;
  };
  PageBuffer arena_;
  std::vector<Projection> projections_;  // [moe layers][kNumProjections]
};

}  // namespace expertree
