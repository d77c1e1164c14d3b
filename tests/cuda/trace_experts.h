// Experts of random weights for programs that sanitizers look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/kernels/packed_layout.h"
#include "cuda/runtime/cuda_experts.h"

namespace expertree {

constexpr int64_t kWidth = 64, kFf = 32;

struct TraceExpert {
  std::vector<std::byte> bytes[kExpertMatrices];
};

// Q8_0: a half of about 0.01, 32 signed bytes.
inline std::vector<std::byte> random_rows(int64_t rows, int64_t k, std::mt19937* random) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes(DType::kQ8_0, k)));
  for (std::byte& b : bytes) b = static_cast<std::byte>((*random)() & 255);
  for (size_t at = 0; at < bytes.size(); at += 34) {
    bytes[at] = std::byte{0x1f};
    bytes[at + 1] = std::byte{0x21};
  }
  return bytes;
}

inline std::vector<TraceExpert> random_experts(int32_t n, std::mt19937* random) {
  std::vector<TraceExpert> experts(static_cast<size_t>(n));
  for (TraceExpert& expert : experts) {
    for (int m = 0; m < kExpertMatrices; ++m) {
      expert.bytes[m] = random_rows(m == 2 ? kWidth : kFf, m == 2 ? kFf : kWidth, random);
    }
  }
  return experts;
}

inline DeviceExpertsPlan trace_plan(int32_t n_layers, int32_t n_experts, int64_t n_slots, int64_t max_inputs,
                                    int64_t max_pairs) {
  DeviceExpertsPlan plan;
  DeviceExpertLayer layer;
  layer.n_experts = n_experts;
  layer.matrices[0] = layer.matrices[1] = {DType::kQ8_0, kFf, kWidth, nullptr, nullptr};
  layer.matrices[2] = {DType::kQ8_0, kWidth, kFf, nullptr, nullptr};
  plan.layers.assign(static_cast<size_t>(n_layers), layer);
  uint64_t bytes = 0;
  for (const DeviceExpertLayer::Matrix& w : layer.matrices) {
    bytes += static_cast<uint64_t>(cuda::packed_layout(w.dtype, w.rows, w.k).bytes);
  }
  plan.slot_bytes = {(bytes + 255) / 256 * 256};
  plan.n_slots = {n_slots};
  plan.n_embd = kWidth;
  plan.max_inputs = max_inputs;
  plan.max_pairs = max_pairs;
  return plan;
}

inline void copy_expert(cuda::CudaExperts* device, const DeviceExpertsPlan& plan, int32_t slot, int32_t layer,
                        const TraceExpert& expert) {
  std::byte* staged = device->stage(layer);
  for (int m = 0; m < kExpertMatrices; ++m) {
    const std::vector<std::byte>& bytes = expert.bytes[m];
    std::memcpy(staged + plan.layers[static_cast<size_t>(layer)].offset_of(m), bytes.data(), bytes.size());
  }
  device->copy(slot, layer);
}

}  // namespace expertree
