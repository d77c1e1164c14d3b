// Devices for Python: what there is, and what a model keeps there.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpp/backend/device_library.h"
#include "cpp/experts/vram_tier.h"
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

nb::dict stats_of(const VramTier& tier) {
  const VramStats s = tier.stats();
  nb::dict d;
  d["device"] = dict_of(s.device);
  d["budget_bytes"] = s.budget_bytes;
  d["fixed_bytes"] = s.fixed_bytes;
  d["all_bytes"] = s.all_bytes;
  d["least_bytes"] = s.least_bytes;
  d["slots"] = s.n_slots;
  d["resident"] = s.n_resident;
  d["hits"] = s.n_hits;
  d["fetches"] = s.n_fetches;
  d["offers"] = s.n_offers;
  d["evictions"] = s.n_evictions;
  d["errors"] = s.n_errors;
  d["runs"] = s.n_runs;
  d["bytes_copied"] = s.bytes_copied;
  d["wait_seconds"] = static_cast<double>(s.wait_us) * 1e-6;
  d["is_lost"] = s.is_lost;
  return d;
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<VramTier>(m, "VramTier")
      .def_prop_ro("stats", &stats_of)
      .def_prop_ro("slots", &VramTier::slots, "Of each size class.");
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
        return opened.device == nullptr ? nb::make_tuple(nb::none(), opened.why_not)
                                        : nb::make_tuple(dict_of(info), "");
      },
      "backend"_a, "(facts about the device, or None; why there is none).");
}

}  // namespace expertree
