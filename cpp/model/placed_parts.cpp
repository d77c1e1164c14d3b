// Where the parts of a model are, for people.
#include <algorithm>

#include "cpp/model/attention_plan.h"
#include "cpp/model/device_use.h"

namespace expertree {
namespace {

constexpr const char* kCells = "KV cache";

std::string formats_without_kernels(const Device& device, const DensePart& part) {
  std::string names;
  for (const DensePart::Matrix& m : part.matrices) {
    if (device.matrix_bytes({m.w->dtype, m.w->rows, m.w->k}) > 0) continue;
    const std::string name = dtype_info(m.w->dtype).name;
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

void add(std::vector<PlacedPart>* rows, PlacedPart part) {
  for (PlacedPart& row : *rows) {
    if (row.name != part.name || row.on_device != part.on_device || row.note != part.note) continue;
    row.n += part.n;
    row.bytes += part.bytes;
    return;
  }
  rows->push_back(std::move(part));
}

void add_dense(const Device& device, const DensePart& part, bool on_device, std::vector<PlacedPart>* rows) {
  PlacedPart row{name_of(part.kind), on_device, 1, 0, 0, ""};
  for (const DensePart::Matrix& m : part.matrices) {
    row.bytes += on_device ? device.matrix_bytes({m.w->dtype, m.w->rows, m.w->k})
                           : static_cast<uint64_t>(m.w->rows * m.w->row_bytes);
  }
  if (!on_device) {
    const std::string formats = formats_without_kernels(device, part);
    row.note = formats.empty() ? "no room on the GPU" : "no kernels for " + formats;
  }
  add(rows, std::move(row));
}

// Keys and values of a layer with attention.
void add_cells(const DenseModel& model, int64_t layer, const DensePlan& dense, std::vector<PlacedPart>* rows) {
  const LayerParameters& p = model.h.layer(layer);
  const int64_t cell = p.n_kv_heads * (cache_row_bytes(model.types.keys, p.head_dim_k) +
                                       (model.h.is_latent() ? 0 : cache_row_bytes(model.types.values, p.head_dim_v)));
  const bool is_there = dense.block[static_cast<size_t>(layer)] >= 0;
  const std::string why = why_not_attention(model.h, layer);
  add(rows, {kCells, is_there, 1, 0, static_cast<uint64_t>(cell * model.n_cells),
             is_there      ? ""
             : why.empty() ? "no room on the GPU"
                           : why});
}

void add_experts(const VramPlan& plan, const ExpertIndex& index, std::vector<PlacedPart>* rows) {
  for (size_t l = 0; l < index.size(); ++l) {
    const ExpertLayer& layer = index[l];
    const bool runs = plan.bytes > 0 && plan.class_of_layer[l] >= 0;
    PlacedPart row{"experts", false, std::ssize(layer.projections[kGate].experts),
                   0,         0,     runs ? "copied there as they are used" : "no kernels for their formats"};
    for (const ExpertLayer::Projection& p : layer.projections) {
      row.bytes += static_cast<uint64_t>(row.n * p.rows * row_bytes(p.dtype, p.k));
    }
    add(rows, std::move(row));
  }
  for (size_t c = 0; plan.bytes > 0 && c < plan.device.n_slots.size(); ++c) {
    const int64_t n = plan.device.n_slots[c];
    add(rows, {"experts", true, n, 0, static_cast<uint64_t>(n) * plan.device.slot_bytes[c], ""});
  }
}

}  // namespace

std::vector<PlacedPart> placed_parts(const Device& device, const DenseModel& model, std::span<const DensePart> parts,
                                     const DensePlan& dense, const VramPlan& experts) {
  const ExpertIndex& index = model.weights.experts;
  std::vector<PlacedPart> rows;
  for (size_t p = 0; p < parts.size(); ++p) add_dense(device, parts[p], dense.first[p] >= 0, &rows);
  for (const DensePart& part : parts) {
    if (part.kind == DensePart::Kind::kAttention) add_cells(model, part.layer, dense, &rows);
  }
  add_experts(experts, index, &rows);
  for (PlacedPart& row : rows) {
    const std::string of = row.name == kCells ? name_of(DensePart::Kind::kAttention) : row.name;
    for (const DensePart& part : parts) row.n_all += of == name_of(part.kind) ? 1 : 0;
    for (const ExpertLayer& layer : index) {
      if (row.name == "experts") row.n_all += std::ssize(layer.projections[kGate].experts);
    }
  }
  return rows;
}

}  // namespace expertree
