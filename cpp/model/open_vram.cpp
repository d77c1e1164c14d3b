// A model on a device: which device, what goes there, and why not.
#include <algorithm>
#include <cstring>

#include "cpp/backend/device_library.h"
#include "cpp/base/error.h"
#include "cpp/model/dense_parts.h"
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

// What could go to the device, and what that takes.
struct PlacementCandidates {
  const Device& device;
  VramPlan experts;
  std::vector<DensePart> parts;
  DenseModel dense;
  uint64_t least_bytes = 0;
  uint64_t all_bytes = 0;

  DensePlan place(uint64_t room_bytes) const { return place_parts(device, dense, parts, room_bytes); }
  bool has_experts() const { return !experts.device.slot_bytes.empty(); }
};

PlacementCandidates find_candidates(const Device& device, VramPlan experts, std::vector<DensePart> parts,
                                    const DenseModel& model) {
  PlacementCandidates found{device, std::move(experts), std::move(parts), model};
  const uint64_t dense = found.place(kAllExperts).bytes;
  if (!found.has_experts() && dense == 0) {
    throw Error(ErrorCode::kUnsupported, "the GPU runs none of the formats that this model has; leave --vram out");
  }
  found.all_bytes = found.experts.all_bytes + dense;
  found.least_bytes = found.has_experts() ? found.experts.least_bytes : least_dense_bytes(device, model, found.parts);
  return found;
}

// What goes there: the parts that every token needs, as far as an expert of each size still finds room, then experts.
struct Choice {
  VramPlan experts;
  DensePlan dense;
  uint64_t bytes() const { return experts.bytes + dense.bytes; }
};

Choice choose_for(const PlacementCandidates& from, const VramOptions& options, uint64_t free_bytes) {
  uint64_t budget = std::min(options.budget_bytes, from.all_bytes);
  if (options.automatic) budget = std::min(budget, free_bytes - left_to_others(free_bytes));
  Choice choice{from.experts, {}};
  if (from.has_experts()) {
    choice.dense = from.place(budget - std::min(budget, from.experts.least_bytes));
    give_slots(&choice.experts, budget - choice.dense.bytes);
  } else {
    choice.dense = from.place(budget);
  }
  if (choice.bytes() == 0) {
    throw Error(ErrorCode::kOutOfMemory, "a budget of " + std::to_string(budget) +
                                             " bytes of GPU memory holds no part of the model; it works with " +
                                             std::to_string(from.least_bytes) + " bytes (" +
                                             format_bytes(from.least_bytes) +
                                             ") or more: raise --vram, or leave it out");
  }
  if (choice.bytes() <= free_bytes) return choice;
  throw Error(ErrorCode::kOutOfMemory,
              "keeping " + format_bytes(choice.bytes()) + " of the model on the GPU does not fit: " +
                  format_bytes(free_bytes) + " are free there; use --vram auto, or a size from " +
                  std::to_string(from.least_bytes) + " bytes (" + format_bytes(from.least_bytes) + ") up");
}

}  // namespace

void Model::make_vram(const VramOptions& options, const PagerOptions& experts, int64_t n_ctx,
                      const std::function<void()>& check_stop) {
  if (backend_->mode() == ActivationMode::kReference) {
    throw Error(ErrorCode::kInvalidRequest, "the GPU runs products on int8 activations; leave out --vram, or f32");
  }
  const std::shared_ptr<Device> device = require_device(options.backend);
  const DeviceInfo info = device->info();
  std::vector<DensePart> parts;
  if (!options.experts_only) parts = dense_parts(h_, weights_);
  const DenseModel model{h_, weights_, cache_types_, Forward::kChunkRows, n_ctx + SequenceState::kTreeCells};
  const PlacementCandidates found = find_candidates(
      *device, vram_shapes(*device, weights_.experts, vram_model(h_, weights_), options.max_pairs), parts, model);
  const auto copy = [this](std::byte* to, const std::byte* from, uint64_t size) {
    constexpr uint64_t kPiece = uint64_t{256} << 10;
    const uint64_t n_pieces = (size + kPiece - 1) / kPiece;
    backend_->pool().parallel_for(static_cast<int64_t>(n_pieces), [&](int64_t i) {
      const uint64_t at = static_cast<uint64_t>(i) * kPiece;
      std::memcpy(to + at, from + at, std::min(kPiece, size - at));
    });
  };
  for (uint64_t free_bytes = info.free_bytes;;) {
    const Choice choice = choose_for(found, options, free_bytes);
    try {
      std::unique_ptr<VramTier> tier;
      if (choice.experts.bytes > 0) {
        tier = std::make_unique<VramTier>(*experts_, device, choice.experts, options, experts, copy);
      }
      if (choice.dense.bytes > 0) {
        products_.place(*device, choice.dense, parts, tier != nullptr ? &tier->device_experts() : nullptr, check_stop);
      }
      vram_ = std::move(tier);
      device_use_ = {info,
                     choice.bytes(),
                     choice.dense.bytes,
                     found.all_bytes,
                     found.least_bytes,
                     placed_parts(*device, model, parts, choice.dense, choice.experts)};
      return;
    } catch (const Error& error) {
      // Free memory may be in pieces: what is wanted "auto" is tried with less.
      if (!options.automatic || error.code() != ErrorCode::kOutOfMemory) throw;
      free_bytes = free_bytes / 8 * 7;
    }
  }
}

void Model::open_vram(const VramOptions& options, const PagerOptions& experts, int64_t n_ctx,
                      const std::function<void()>& check_stop) {
  if (options.budget_bytes == 0) return;
  try {
    make_vram(options, experts, n_ctx, check_stop);
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
  try {
    vram_->fill(check_stop);
  } catch (...) {
    share_loss();
    throw;
  }
}

void Model::share_loss() noexcept {
  const bool tier_is_lost = vram_ != nullptr && vram_->is_lost();
  if (tier_is_lost) products_.give_up();
  if (vram_ != nullptr && !tier_is_lost && products_.is_lost()) vram_->give_up();
}

}  // namespace expertree
