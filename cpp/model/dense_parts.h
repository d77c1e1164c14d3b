// What every token needs of a model's matrices, in parts that go to a device as wholes or stay on the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpp/backend/device.h"
#include "cpp/model/cache_types.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

struct DensePart {
  enum class Kind : uint8_t { kAttention, kRecurrent, kFeedForward, kSharedExpert, kHead };
  struct Matrix {
    const WeightMatrix* w;
    const FloatVector* bias = nullptr;  // of the products; nullptr or empty: none

    const float* bias_or_null() const { return bias == nullptr || bias->empty() ? nullptr : bias->data(); }
  };
  Kind kind;
  int64_t layer;  // of the head: 0
  std::vector<Matrix> matrices;  // of a feed-forward part gate, up, down

  bool is_feed_forward() const { return kind == Kind::kFeedForward || kind == Kind::kSharedExpert; }
};

const char* name_of(DensePart::Kind kind);

// In the order in which they go to the device: all attention, then what is beside experts, then the head. Pointers into
// `weights`. Left out: norms and routers, which go with attention (place_parts); matrices of single heads and rows of
// embeddings, which stay on the CPU.
std::vector<DensePart> dense_parts(const HyperParameters& h, const ModelWeights& weights);

// What parts are placed for.
struct DenseModel {
  const HyperParameters& h;
  const ModelWeights& weights;
  CacheTypes types;     // of sessions
  int64_t max_rows = 0;  // of a batch
  int64_t n_cells = 0;  // of sessions' keys and values on the device, all together
};

struct DensePlan {
  DeviceDensePlan device;
  std::vector<int32_t> first;  // of each part: its first matrix there; -1: the part stays on the CPU
  std::vector<int32_t> block;  // of each layer: which block it is there, attention with its KV cache; -1: none
  // Beside the parts: the routers of blocks, and their numbers there.
  std::vector<std::pair<int32_t, const WeightMatrix*>> routers;
  uint64_t bytes = 0;  // of device memory, buffers included; 0: no part goes there
};

// Whether the device runs all formats and sizes of a part.
bool runs_on(const Device& device, const DensePart& part);

// The parts that find room, in order, and then attention as a whole of layers whose matrices are there, with norms, the
// layer's dense feed-forward part if that is there, and its router.
DensePlan place_parts(const Device& device, const DenseModel& model, std::span<const DensePart> parts,
                      uint64_t room_bytes);
// The least room in which place_parts() places something; 0: the device runs none of the parts.
uint64_t least_dense_bytes(const Device& device, const DenseModel& model, std::span<const DensePart> parts);

}  // namespace expertree
