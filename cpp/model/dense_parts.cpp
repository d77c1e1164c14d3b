#include "cpp/model/dense_parts.h"

#include <algorithm>

#include "cpp/model/attention_plan.h"
#include "cpp/model/block_plan.h"

namespace expertree {
namespace {

using Kind = DensePart::Kind;

// Outputs of one call beyond this come in several ones.
constexpr int64_t kOutputFloats = int64_t{4} << 20;
constexpr int64_t kMostTails = int64_t{1} << 18;  // of attention's rows: 512 nodes in a chain beside another one

void add_present(std::initializer_list<DensePart::Matrix> matrices, DensePart* part) {
  for (const DensePart::Matrix& m : matrices) {
    if (m.w->present()) part->matrices.push_back(m);
  }
}

DensePart mixer_part(const HyperParameters& h, const LayerWeights& w, int64_t layer) {
  const Mixer mixer = h.layer(layer).mixer;
  DensePart part{mixer == Mixer::kAttention ? Kind::kAttention : Kind::kRecurrent, layer, {}};
  const AttentionWeights& a = w.attention;
  if (mixer == Mixer::kDeltaNet) {
    const DeltaNetWeights& d = w.delta_net;
    add_present({{&d.qkv}, {&d.gate}, {&d.alpha}, {&d.beta}, {&d.output}}, &part);
  } else if (mixer == Mixer::kShortConv) {
    add_present({{&w.short_conv.in}, {&w.short_conv.output}}, &part);
  } else if (h.is_latent()) {
    add_present({{&a.latent.q_down}, {&a.q}, {&a.latent.kv_down}, {&a.output, &a.output_bias}}, &part);
  } else {
    add_present({{&a.q, &a.q_bias}, {&a.k, &a.k_bias}, {&a.v, &a.v_bias}, {&a.gate, &a.gate_bias}}, &part);
    add_present({{&a.output, &a.output_bias}}, &part);
  }
  return part;
}

// One with biases stays on the CPU: the part has no matrices.
DensePart unit_part(Kind kind, const FeedForwardWeights& w, int64_t layer) {
  if (w.biased()) return {kind, layer, {}};
  return {kind, layer, {{&w.gate}, {&w.up}, {&w.down}}};
}

void grow(int64_t* size, int64_t least) { *size = std::max(*size, least); }

void add_head(const DenseModel& model, const WeightMatrix& w, DeviceDensePlan* plan) {
  const HyperParameters& h = model.h;
  plan->head = {.matrix = static_cast<int32_t>(plan->matrices.size()) - 1,
                .n_embd = h.n_embd,
                .norm = {data_or_null(model.weights.output_norm), data_or_null(model.weights.output_norm_bias)},
                .layer_norm = h.layer_norm,
                .eps = h.rms_eps,
                .scale = static_cast<float>(h.logit_scale),
                .softcap = static_cast<float>(h.logit_softcap)};
  const int64_t row = w.rows + DeviceHead::outputs(1, kMostBest).size;
  grow(&plan->max_outputs, std::min(plan->max_rows * row, std::max(row, kOutputFloats)));
}

void add_part(const DenseModel& model, const DensePart& part, DeviceDensePlan* plan) {
  int64_t width = 0;
  for (const DensePart::Matrix& m : part.matrices) {
    plan->matrices.push_back({m.w->dtype, m.w->rows, m.w->k, m.w->scale, m.bias_or_null()});
    width += m.w->rows;
  }
  grow(&plan->max_k, part.matrices.front().w->k);
  if (part.is_feed_forward()) {
    const WeightMatrix& gate = *part.matrices[0].w;
    grow(&plan->max_hidden, gate.rows);
    grow(&plan->max_outputs, plan->max_rows * part.matrices[2].w->rows);
    if (gate.dtype != part.matrices[1].w->dtype) plan->mixed_units = true;
    return;
  }
  if (part.kind == Kind::kHead) add_head(model, *part.matrices.front().w, plan);
  for (const DensePart::Matrix& m : part.matrices) grow(&plan->max_k, m.w->k);
  grow(&plan->max_outputs, std::min(plan->max_rows * width, std::max(width, kOutputFloats)));
}

// Attention of a layer and what goes with it.
void add_block(const DenseModel& model, int64_t layer, BlockMatrices first, bool routes, DensePlan* plan) {
  const HyperParameters& h = model.h;
  const LayerWeights& w = model.weights.layers[static_cast<size_t>(layer)];
  DeviceDensePlan& device = plan->device;
  if (routes) {
    first.router = static_cast<int32_t>(device.matrices.size());
    plan->routers.emplace_back(first.router, &w.moe.router);
    device.matrices.push_back(router_matrix(w.moe));
  }
  device.blocks.push_back(device_block(h, w, layer, first, model.types));
  grow(&device.max_k, h.n_embd);
  // A trip of this layer alone always has room: with the call's flags before its outputs, and the residual stream behind.
  const int64_t trip =
      kDeviceCallHead + device.max_rows * h.n_embd + device.blocks.back().outputs(device.max_rows).size;
  grow(&device.max_outputs, trip);
  device.n_cells = model.n_cells;
  device.max_pairs = std::max(h.n_rot, h.n_rot_windowed) / 2;
  device.max_tails = kMostTails;
}

DeviceDensePlan empty_plan(const DenseModel& model) {
  DeviceDensePlan plan;
  plan.unit = model.h.unit;
  plan.max_rows = model.max_rows;
  return plan;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAttention: return "attention";
    case Kind::kRecurrent: return "recurrent layers";
    case Kind::kFeedForward: return "dense feed-forward";
    case Kind::kSharedExpert: return "shared experts";
    case Kind::kHead: return "head";
  }
  return "";
}

std::vector<DensePart> dense_parts(const HyperParameters& h, const ModelWeights& weights) {
  std::vector<DensePart> mixers, beside;
  for (int64_t i = 0; i < h.n_layers; ++i) {
    const LayerWeights& w = weights.layers[static_cast<size_t>(i)];
    mixers.push_back(mixer_part(h, w, i));
    const bool has_experts = w.moe.moe_layer >= 0;
    if (!has_experts || h.moe.dense_beside) {
      beside.push_back(unit_part(Kind::kFeedForward, w.dense, i));
    } else if (h.moe.shared != SharedExpert::kNone) {
      beside.push_back(unit_part(Kind::kSharedExpert, w.moe.shared, i));
    }
  }
  std::ranges::stable_sort(mixers, {}, &DensePart::kind);
  std::ranges::stable_sort(beside, {}, &DensePart::kind);
  std::vector<DensePart> parts = std::move(mixers);
  parts.insert(parts.end(), beside.begin(), beside.end());
  parts.push_back({Kind::kHead, 0, {{&weights.output, &weights.output_bias}}});
  std::erase_if(parts, [](const DensePart& part) { return part.matrices.empty(); });
  return parts;
}

bool runs_on(const Device& device, const DensePart& part) {
  return std::ranges::all_of(part.matrices, [&](const DensePart::Matrix& m) {
    return device.matrix_bytes({m.w->dtype, m.w->rows, m.w->k, m.w->scale, m.bias_or_null()}) > 0;
  });
}

DensePlan place_parts(const Device& device, const DenseModel& model, std::span<const DensePart> parts,
                      uint64_t room_bytes) {
  const auto n_layers = static_cast<size_t>(model.h.n_layers);
  DensePlan plan{empty_plan(model), {}, std::vector<int32_t>(n_layers, -1), {}, 0};
  for (const DensePart& part : parts) {
    plan.first.push_back(-1);
    if (!runs_on(device, part)) continue;
    DeviceDensePlan with = plan.device;
    add_part(model, part, &with);
    const uint64_t bytes = device.dense_bytes(with);
    if (bytes > room_bytes) continue;
    plan.first.back() = static_cast<int32_t>(plan.device.matrices.size());
    plan.device = std::move(with);
    plan.bytes = bytes;
  }
  std::vector<BlockMatrices> matrices(n_layers, BlockMatrices{-1});
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto layer = static_cast<size_t>(parts[p].layer);
    if (parts[p].kind == Kind::kAttention) matrices[layer].attention = plan.first[p];
    const bool has_experts = model.weights.layers[layer].moe.moe_layer >= 0;
    if (parts[p].kind == Kind::kFeedForward && !has_experts) matrices[layer].feed_forward = plan.first[p];
    if (parts[p].kind == Kind::kSharedExpert) matrices[layer].shared = plan.first[p];
  }
  for (size_t layer = 0; layer < n_layers; ++layer) {
    const auto number = static_cast<int64_t>(layer);
    if (matrices[layer].attention < 0 || !why_not_attention(model.h, number).empty()) continue;
    DensePlan with = plan;
    add_block(model, number, matrices[layer], can_route(device, model.h, model.weights.layers[layer]), &with);
    with.bytes = device.dense_bytes(with.device);
    if (with.bytes > room_bytes) continue;
    with.block[layer] = static_cast<int32_t>(plan.device.blocks.size());
    plan = std::move(with);
  }
  return plan;
}

uint64_t least_dense_bytes(const Device& device, const DenseModel& model, std::span<const DensePart> parts) {
  uint64_t least = 0;
  for (const DensePart& part : parts) {
    if (!runs_on(device, part)) continue;
    DeviceDensePlan plan = empty_plan(model);
    add_part(model, part, &plan);
    const uint64_t bytes = device.dense_bytes(plan);
    if (least == 0 || bytes < least) least = bytes;
  }
  return least;
}

}  // namespace expertree
