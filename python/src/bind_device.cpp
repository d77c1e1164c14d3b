// Devices for Python: what there is, and what a model keeps there.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpp/backend/device_library.h"
#include "cpp/model/model.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

nb::dict dict_of(const DeviceInfo& info) {
  nb::dict d;
  d["name"] = info.name;
  d["backend"] = info.backend;
  d["index"] = info.index;
  d["devices"] = info.n_devices;
  d["total_bytes"] = info.total_bytes;
  d["free_bytes"] = info.free_bytes;
  return d;
}

// Names of those whose products it runs.
nb::list formats_of(const Device& device) {
  constexpr int64_t kWholeBlocks = 256;
  nb::list names;
  for (int32_t number = 0; number < 64; ++number) {
    const DTypeInfo* info = find_dtype(number);
    if (info == nullptr || device.matrix_bytes({info->dtype, 1, kWholeBlocks}) == 0) continue;
    names.append(info->name);
  }
  return names;
}

void add_experts(const VramTier& tier, nb::dict& d) {
  const VramStats s = tier.stats();
  d["fixed_bytes"] = s.fixed_bytes;
  d["slots"] = s.n_slots;
  d["resident"] = s.n_resident;
  d["hits"] = s.n_hits;
  d["fetches"] = s.n_fetches;
  d["offers"] = s.n_offers;
  d["evictions"] = s.n_evictions;
  d["runs"] = s.n_runs;
  d["bytes_copied"] = s.bytes_copied;
  d["wait_seconds"] = static_cast<double>(s.wait_us) * 1e-6;
}

nb::list parts_of(const DeviceUse& use) {
  nb::list parts;
  for (const PlacedPart& part : use.parts) {
    nb::dict d;
    d["part"] = part.name;
    d["place"] = part.on_device ? "GPU" : "RAM";
    d["n"] = part.n;
    d["of"] = part.n_all;
    d["bytes"] = part.bytes;
    d["note"] = part.note;
    parts.append(d);
  }
  return parts;
}

}  // namespace

nb::object device_use(const Model& model) {
  if (!model.device_use()) return nb::none();
  const DeviceUse& use = *model.device_use();
  const ProductStats products = model.products().stats();
  nb::dict d;
  d["device"] = dict_of(use.device);
  d["budget_bytes"] = use.budget_bytes;
  d["dense_bytes"] = use.dense_bytes;
  d["all_bytes"] = use.all_bytes;
  d["least_bytes"] = use.least_bytes;
  d["parts"] = parts_of(use);
  if (model.products().cells() != nullptr) {
    d["kv_cells"] = model.products().cells()->n_cells();
    d["kv_cells_free"] = model.products().cells()->n_free();
  }
  d["products"] = products.n_products;
  d["products_wait_seconds"] = static_cast<double>(products.wait_us) * 1e-6;
  int64_t n_errors = products.n_errors;
  bool is_lost = products.is_lost;
  if (model.vram() != nullptr) {
    const VramStats experts = model.vram()->stats();
    add_experts(*model.vram(), d);
    n_errors += experts.n_errors;
    is_lost = is_lost || experts.is_lost;
  }
  d["errors"] = n_errors;
  d["is_lost"] = is_lost;
  return d;
}

void bind_device(nb::module_& m) {
  m.def(
      "find_device",
      [](const std::string& backend) {
        OpenedDevice opened;
        DeviceInfo info;
        {
          nb::gil_scoped_release released;
          opened = open_device(backend);
          if (opened.device != nullptr) info = opened.device->info();
        }
        if (opened.device == nullptr) return nb::make_tuple(nb::none(), opened.why_not);
        nb::dict found = dict_of(info);
        found["formats"] = formats_of(*opened.device);
        return nb::make_tuple(found, "");
      },
      "backend"_a, "(facts about the device, or None; why there is none).");
}

}  // namespace expertree
