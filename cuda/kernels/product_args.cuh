// What product kernels are given, and what they share: finding a group's rows, and the end of an output.
#pragma once

#include <cstdint>

#include "cpp/kernels/canonical_math.h"
#include "cuda/gpu/gpu.h"
#include "cuda/kernels/expert_kernels.h"
#include "cuda/kernels/weight_words.cuh"

namespace expertree::cuda {

constexpr int kProductWarps = 4;
constexpr int kProductThreads = 32 * kProductWarps;
// Blocks that an SM holds at least: 168 registers to a thread (for one input row half as many). Left alone, the compiler
// spills some to hold more blocks.
constexpr int kProductBlocks = 3;

// A matrix of every expert of a layer, or one by itself.
struct MatrixArgs {
  const void* const* data;  // [n_experts]; null: `alone`
  const uint8_t* alone;
  int64_t offset;
  const float* scales;  // [n_experts] or null: `scale`
  float scale;
  const float* bias;  // [n_experts][rows] or null
  int64_t plane_offset[kNumPlanes];
  int64_t plane_row_bytes[kNumPlanes];

  __device__ const uint8_t* base(int expert) const {
    return data != nullptr ? static_cast<const uint8_t*>(data[expert]) + offset : alone;
  }
};

struct ProductArgs {
  MatrixArgs w[2];  // two of them: gate and up
  int32_t rows;
  int32_t k;
  Unit unit;
  ProductInput x;
  // As in ExpertGroups; active null: one group of n_rows rows, each of itself.
  const int32_t* active;
  const int32_t* n_active;
  const int32_t* begin;
  const int32_t* x_row;  // null: the place itself
  const int32_t* y_row;  // null: the place itself
  int32_t n_rows;
  int32_t min_rows;  // groups of fewer and of more rows are left to another kernel
  int32_t max_rows;
  int32_t n_column_tiles;  // of the grid
  float* y;
  int64_t y_stride;
};

struct GroupOfRows {
  int expert;
  int begin;  // place of its first row
  int count;  // 0: nothing to do
};

// The same for all threads of a block.
__device__ inline GroupOfRows group_of_block(const ProductArgs& args) {
  GroupOfRows group{0, 0, args.n_rows};
  if (args.active != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *args.n_active) return {0, 0, 0};
    group.expert = args.active[blockIdx.y];
    group.begin = args.begin[group.expert];
    group.count = args.begin[group.expert + 1] - group.begin;
  }
  if (group.count < args.min_rows || group.count > args.max_rows) group.count = 0;
  return group;
}

__device__ inline int64_t input_row(const ProductArgs& args, int place) {
  return args.x_row != nullptr ? args.x_row[place] : place;
}
__device__ inline int64_t output_row(const ProductArgs& args, int place) {
  return args.y_row != nullptr ? args.y_row[place] : place;
}

__device__ inline PackedRow packed_row(const MatrixArgs& w, int expert, int row) {
  PackedRow out;
  const uint8_t* base = w.base(expert);
  for (int p = 0; p < kNumPlanes; ++p) out.plane[p] = base + w.plane_offset[p] + row * w.plane_row_bytes[p];
  return out;
}

// A product as the layer has it.
__device__ inline float finish_product(const MatrixArgs& w, int expert, int rows, int row, float product) {
  product = __fmul_rn(product, w.scales != nullptr ? w.scales[expert] : w.scale);
  if (w.bias != nullptr) product = __fadd_rn(product, w.bias[static_cast<int64_t>(expert) * rows + row]);
  return product;
}

__device__ inline float gated_unit(Unit unit, float gate, float up) {
  switch (unit) {
    case Unit::kSwiGlu: return __fmul_rn(canonical_silu(gate), up);
    case Unit::kGeGlu: return __fmul_rn(canonical_gelu(gate), up);
    case Unit::kSwiGluOai: return canonical_swiglu_oai(gate, up);
    case Unit::kReGlu: return __fmul_rn(max_pass_nan(0.0f, gate), up);
  }
  return 0.0f;
}

}  // namespace expertree::cuda
