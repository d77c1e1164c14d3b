// A model's experts on a device: which device, how much of it, and why not.
#include <algorithm>
#include <cstring>

#include "cpp/backend/device_library.h"
#include "cpp/base/error.h"
#include "cpp/model/forward.h"
#include "cpp/model/model.h"

namespace expertree {
namespace {

// What "auto" leaves to others: an eighth of what is free, at most 512 MiB.
uint64_t left_to_others(uint64_t free_bytes) { return std::min(free_bytes / 8, uint64_t{512} << 20); }

VramModel vram_model(const HyperParameters& h, const ModelWeights& weights) {
  VramModel model;
  model.unit = h.unit;
  model.n_embd = h.n_embd;
  model.n_used = h.moe.n_used;
  model.max_rows = Forward::kChunkRows;
  model.weighs_input = h.moe.weighs_input;
  model.layers.resize(weights.experts.size());
  for (const LayerWeights& layer : weights.layers) {
    if (layer.moe.moe_layer < 0) continue;
    const FloatVector* biases[] = {&layer.moe.gate_bias, &layer.moe.up_bias, &layer.moe.down_bias};
    for (int m = 0; m < kExpertMatrices; ++m) {
      if (biases[m]->empty()) continue;
      model.layers[static_cast<size_t>(layer.moe.moe_layer)].biases[m] = biases[m]->data();
    }
  }
  return model;
}

// Slots for what is asked for, or for what is free.
void fit(VramPlan* plan, const VramOptions& options, uint64_t free_bytes) {
  if (plan->device.slot_bytes.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "the GPU runs none of the formats that this model's experts have; leave --vram out");
  }
  uint64_t budget = std::min(options.budget_bytes, plan->all_bytes);
  if (options.automatic) budget = std::min(budget, free_bytes - left_to_others(free_bytes));
  give_slots(plan, budget);
  if (plan->bytes <= free_bytes) return;
  throw Error(ErrorCode::kOutOfMemory,
              "keeping " + format_bytes(plan->bytes) + " of the model's experts on the GPU does not fit: " +
                  format_bytes(free_bytes) + " are free there; use --vram auto, or a size from " +
                  std::to_string(plan->least_bytes) + " bytes (" + format_bytes(plan->least_bytes) + ") up");
}

}  // namespace

void Model::make_vram(const VramOptions& options, const PagerOptions& experts) {
  if (backend_->mode() == ActivationMode::kReference) {
    throw Error(ErrorCode::kInvalidRequest, "the GPU runs experts on int8 activations; leave out --vram, or f32");
  }
  const std::shared_ptr<Device> device = require_device(options.backend);
  const DeviceInfo info = device->info();
  const VramPlan shapes = vram_shapes(*device, weights_.experts, vram_model(h_, weights_), options.max_pairs);
  const auto copy = [this](std::byte* to, const std::byte* from, uint64_t size) {
    constexpr uint64_t kPiece = uint64_t{256} << 10;
    const uint64_t n_pieces = (size + kPiece - 1) / kPiece;
    backend_->pool().parallel_for(static_cast<int64_t>(n_pieces), [&](int64_t i) {
      const uint64_t at = static_cast<uint64_t>(i) * kPiece;
      std::memcpy(to + at, from + at, std::min(kPiece, size - at));
    });
  };
  for (uint64_t free_bytes = info.free_bytes;;) {
    VramPlan plan = shapes;
    fit(&plan, options, free_bytes);
    try {
      vram_ = std::make_unique<VramTier>(*experts_, device, plan, options, experts, copy);
      return;
    } catch (const Error& error) {
      // Free memory may be in pieces: what is wanted "auto" is tried with less.
      if (!options.automatic || error.code() != ErrorCode::kOutOfMemory) throw;
      free_bytes = free_bytes / 8 * 7;
    }
  }
}

void Model::open_vram(const VramOptions& options, const PagerOptions& experts) {
  if (options.budget_bytes == 0 || experts_ == nullptr) return;
  try {
    make_vram(options, experts);
  } catch (const Error& error) {
    if (!options.automatic) throw;
    vram_note_ = error.what();
  }
}

void Model::load_experts(const std::function<void()>& check_stop) {
  if (experts_ == nullptr) return;
  experts_->fill(check_stop);
  if (vram_ == nullptr) return;
  const std::unique_lock<std::mutex> lock = lock_backend();
  vram_->fill(check_stop);
}

}  // namespace expertree
