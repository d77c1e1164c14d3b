// A model's expert pager for Python: what it holds, what it did, hints.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "cpp/experts/expert_pager.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

nb::dict stats_of(const ExpertPager& pager) {
  PagerStats s;
  {
    nb::gil_scoped_release released;
    s = pager.stats();
  }
  nb::dict d;
  d["policy"] = s.policy;
  d["reader"] = pager.reader_name();
  d["budget_bytes"] = s.budget_bytes;
  d["all_bytes"] = s.all_bytes;
  d["least_bytes"] = pager.plan().least_bytes;
  d["slots"] = s.n_slots;
  d["resident"] = s.n_resident;
  d["steps"] = s.n_steps;
  d["rows"] = s.n_rows;
  d["uses"] = s.n_uses;
  d["device_hits"] = s.n_device_hits;
  d["device_runs"] = s.n_device_runs;
  d["hits"] = s.n_hits;
  d["late"] = s.n_late;
  d["misses"] = s.n_misses;
  d["reads"] = s.n_reads;
  d["failed_reads"] = s.n_failed_reads;
  d["bytes_read"] = s.bytes_read;
  d["bytes_from_disk"] = s.bytes_from_disk;
  d["bytes_overread"] = s.bytes_overread;
  d["bytes_from_cache"] = s.bytes_from_cache;
  d["read_seconds"] = static_cast<double>(s.read_us) * 1e-6;
  d["read_bytes_per_second"] = s.read_bytes_per_second;
  d["wait_seconds"] = static_cast<double>(s.wait_us) * 1e-6;
  d["evictions"] = s.n_evictions;
  d["hints"] = s.n_hints;
  d["hint_reads"] = s.n_hint_reads;
  d["hints_in_time"] = s.n_hints_in_time;
  d["hints_late"] = s.n_hints_late;
  d["hints_wasted"] = s.n_hints_wasted;
  d["hint_closings"] = s.n_hint_closings;
  d["hints_open"] = s.hints_open;
  return d;
}

nb::object states_of(const ExpertPager& pager) {
  const auto n_layers = static_cast<size_t>(pager.layout().n_layers());
  const auto n_experts = static_cast<size_t>(pager.layout().n_experts());
  auto* states = new std::vector<uint8_t>;
  for (size_t layer = 0; layer < n_layers; ++layer) {
    for (size_t e = 0; e < n_experts; ++e) {
      states->push_back(static_cast<uint8_t>(pager.state(static_cast<int32_t>(layer), static_cast<int32_t>(e))));
    }
  }
  nb::capsule owner(states, [](void* p) noexcept { delete static_cast<std::vector<uint8_t>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(states->data(), {n_layers, n_experts}, owner));
}

}  // namespace

void bind_expert_pager(nb::module_& m) {
  nb::class_<ExpertPager>(m, "ExpertPager")
      .def_prop_ro("stats", &stats_of)
      .def_prop_ro("states", &states_of,
                   "uint8 (n_layers, n_experts): 0 on disk, 1 being read, 2 in memory, 3 on a device.")
      .def_prop_ro("costs",
                   [](const ExpertPager& pager) {
                     const ExpertCosts costs = pager.costs();
                     nb::dict d;
                     d["read_bytes_per_second"] = costs.read_bytes_per_second;
                     d["run_base_seconds"] = costs.run_base_seconds;
                     d["run_row_seconds"] = costs.run_row_seconds;
                     d["step_seconds"] = costs.step_seconds;
                     d["link_bytes_per_second"] = costs.link_bytes_per_second;
                     d["device_base_seconds"] = costs.device_base_seconds;
                     d["device_row_seconds"] = costs.device_row_seconds;
                     return d;
                   })
      .def_prop_ro("n_layers", [](const ExpertPager& pager) { return pager.layout().n_layers(); })
      .def_prop_ro("n_experts", [](const ExpertPager& pager) { return pager.layout().n_experts(); })
      .def_prop_ro(
          "slots", [](const ExpertPager& pager) { return pager.plan().n_slots; }, "Of each size class.")
      .def_prop_ro("slot_bytes", [](const ExpertPager& pager) { return pager.layout().slot_bytes(); })
      .def_prop_ro(
          "file_bytes",
          [](const ExpertPager& pager) {
            std::vector<uint64_t> sizes;
            for (int32_t l = 0; l < pager.layout().n_layers(); ++l) sizes.push_back(pager.layout().file_bytes(l));
            return sizes;
          },
          "Of an expert, by MoE layer.")
      .def_prop_ro("class_of_layer",
                   [](const ExpertPager& pager) {
                     std::vector<int32_t> classes;
                     for (int32_t l = 0; l < pager.layout().n_layers(); ++l) {
                       classes.push_back(pager.layout().class_of(l));
                     }
                     return classes;
                   })
      .def(
          "counted",
          [](const ExpertPager& pager) {
            CountedUses counted;
            {
              nb::gil_scoped_release released;
              counted = pager.counted();
            }
            return nb::make_tuple(counted.n_rows.front(), counted.uses);
          },
          "Rows of the text so far, and each expert's uses by them, [n_layers * n_experts].")
      .def(
          "set_values",
          [](ExpertPager& pager, const nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>& values) {
            if (pager.values() == nullptr) throw Error(ErrorCode::kInvalidRequest, "the policy goes by no values");
            pager.values()->set({values.data(), values.data() + values.size()});
          },
          "values"_a, "What keeping each expert is worth, float32 [n_layers * n_experts].")
      .def("set_policy", &ExpertPager::set_policy, "name"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "hint",
          [](ExpertPager& pager, int32_t layer, const std::vector<int32_t>& experts, float priority) {
            for (const int32_t e : experts) {
              if (layer >= 0 && layer < pager.layout().n_layers() && e >= 0 && e < pager.layout().n_experts_of(layer)) {
                continue;
              }
              throw nb::index_error("no such expert");
            }
            nb::gil_scoped_release released;
            pager.hint(layer, experts, priority);
          },
          "layer"_a, "experts"_a, "priority"_a = 0.0f)
      .def(
          "fill",
          [](ExpertPager& pager) {
            nb::gil_scoped_release released;
            pager.fill([] {
              nb::gil_scoped_acquire gil;
              if (PyErr_CheckSignals() != 0) throw nb::python_error();
            });
          },
          "Waits until every expert that has room is in memory.")
      .def("profile", &ExpertPager::profile, "Uses per step, [n_layers * n_experts].")
      .def_prop_ro_static(
          "profile_rows", [](nb::handle) { return kProfileRows; }, "What a loaded profile weighs, in rows.")
      .def("reuse", &ExpertPager::reuse,
           "Shares of each layer's uses by how many others were used since, [n_layers * n_experts].")
      .def("start_trace", &ExpertPager::start_trace)
      .def("take_trace", [](ExpertPager& pager) { return std::make_shared<RoutingTrace>(pager.take_trace()); });
}

}  // namespace expertree
