// Cache policies and their simulation for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/experts/cache_simulation.h"
#include "cpp/experts/reuse_meter.h"
#include "cpp/experts/slot_layout.h"
#include "cpp/io/direct_access.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Begins = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Experts = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_experts(const int32_t* experts, size_t n, int32_t n_experts) {
  for (size_t i = 0; i < n; ++i) {
    if (experts[i] >= 0 && experts[i] < n_experts) continue;
    throw Error(ErrorCode::kInvalidRequest, "a trace names expert " + std::to_string(experts[i]) + " of " +
                                                std::to_string(n_experts) + "; record it with the same model");
  }
}

void check_shape(int64_t n_layers, int32_t n_experts) {
  if (n_layers >= 1 && n_layers <= 1 << 20 && n_experts >= 1 && n_experts <= 1 << 20) return;
  throw Error(ErrorCode::kInvalidRequest, "a trace of " + std::to_string(n_layers) + " layers and " +
                                              std::to_string(n_experts) + " experts; expected at least 1 of each");
}

std::shared_ptr<RoutingTrace> trace_of_tokens(const Ids& ids, int32_t n_experts) {
  check_shape(static_cast<int64_t>(ids.shape(0)), n_experts);
  check_experts(ids.data(), ids.size(), n_experts);
  const size_t n_layers = ids.shape(0);
  const size_t n_tokens = ids.shape(1);
  const size_t n_used = ids.shape(2);
  auto trace = std::make_shared<RoutingTrace>(static_cast<int32_t>(n_layers), n_experts);
  for (size_t t = 0; t < n_tokens; ++t) {
    for (size_t l = 0; l < n_layers; ++l) trace->add({ids.data() + (l * n_tokens + t) * n_used, n_used});
  }
  return trace;
}

std::shared_ptr<RoutingTrace> trace_of_steps(const Begins& begin, const Experts& experts, int32_t n_layers,
                                             int32_t n_experts) {
  check_shape(n_layers, n_experts);
  check_experts(experts.data(), experts.size(), n_experts);
  auto trace = std::make_shared<RoutingTrace>(n_layers, n_experts);
  for (size_t i = 0; i + 1 < begin.size(); ++i) {
    const int64_t first = begin.data()[i];
    const int64_t last = begin.data()[i + 1];
    if (first < 0 || last < first || last > static_cast<int64_t>(experts.size())) {
      throw Error(ErrorCode::kInvalidRequest, "a trace's entry " + std::to_string(i) + " begins at " +
                                                  std::to_string(first) + " and ends at " + std::to_string(last) +
                                                  "; the file is damaged, record it again");
    }
    trace->add({experts.data() + first, static_cast<size_t>(last - first)});
  }
  return trace;
}

nb::dict simulate(const std::shared_ptr<RoutingTrace>& trace, const std::vector<int32_t>& class_of_layer,
                  const std::vector<int64_t>& n_slots, const std::string& policy, const std::vector<float>& profile,
                  int64_t n_warmup_steps) {
  const ExpertCache::Shape shape{trace->n_layers(), trace->n_experts(), class_of_layer, n_slots};
  const auto n_keys = static_cast<size_t>(shape.n_layers) * static_cast<size_t>(shape.n_experts);
  const auto is_class = [&](int32_t c) { return c >= 0 && static_cast<size_t>(c) < n_slots.size(); };
  if (class_of_layer.size() != static_cast<size_t>(shape.n_layers) ||
      !std::all_of(class_of_layer.begin(), class_of_layer.end(), is_class) ||
      !std::all_of(n_slots.begin(), n_slots.end(), [](int64_t n) { return n >= 1 && n <= 1 << 24; }) ||
      (!profile.empty() && profile.size() != n_keys)) {
    throw Error(ErrorCode::kInvalidRequest, "simulate: classes, slots or profile do not fit a trace of " +
                                                std::to_string(shape.n_layers) + " layers of " +
                                                std::to_string(shape.n_experts) + " experts");
  }
  SimulationResult result;
  {
    nb::gil_scoped_release released;
    result = simulate_cache(
        shape, policy, {shape.n_layers, shape.n_experts, profile, trace, all_alike(shape.n_layers, shape.n_experts)},
        *trace, n_warmup_steps);
  }
  nb::dict d;
  d["steps"] = result.n_steps;
  d["uses"] = result.n_uses;
  d["hits"] = result.n_hits;
  d["misses_by_layer"] = result.n_misses;
  d["misses"] = result.step_misses;
  return d;
}

}  // namespace

nb::tuple trace_arrays(const RoutingTrace& trace) {
  auto* begin = new std::vector<int64_t>{0};
  auto* experts = new std::vector<int32_t>;
  for (int64_t step = 0; step < trace.n_steps(); ++step) {
    for (int32_t layer = 0; layer < trace.n_layers(); ++layer) {
      const auto used = trace.experts(step, layer);
      experts->insert(experts->end(), used.begin(), used.end());
      begin->push_back(static_cast<int64_t>(experts->size()));
    }
  }
  nb::capsule begin_owner(begin, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
  nb::capsule experts_owner(experts, [](void* p) noexcept { delete static_cast<std::vector<int32_t>*>(p); });
  return nb::make_tuple(nb::ndarray<nb::numpy, int64_t>(begin->data(), {begin->size()}, begin_owner),
                        nb::ndarray<nb::numpy, int32_t>(experts->data(), {experts->size()}, experts_owner));
}

// What a pager that ran the first steps would record of them: rates and reuse, each [n_layers * n_experts].
nb::tuple use_of_steps(const RoutingTrace& trace, int64_t n_steps) {
  const int64_t n = std::clamp<int64_t>(n_steps, 0, trace.n_steps());
  const auto n_experts = static_cast<size_t>(trace.n_experts());
  std::vector<float> rates(static_cast<size_t>(trace.n_layers()) * n_experts, 0.0f);
  std::vector<float> reuse;
  ReuseMeter meter(std::vector<int32_t>(static_cast<size_t>(trace.n_layers()), trace.n_experts()));
  for (int32_t layer = 0; layer < trace.n_layers(); ++layer) {
    for (int64_t step = 0; step < n; ++step) {
      const auto used = trace.experts(step, layer);
      for (const int32_t e : used) {
        rates[static_cast<size_t>(layer) * n_experts + static_cast<size_t>(e)] += 1.0f / static_cast<float>(n);
      }
      meter.use(layer, used);
    }
    const std::vector<float> shares = meter.shares(layer);
    reuse.insert(reuse.end(), shares.begin(), shares.end());
  }
  return nb::make_tuple(rates, reuse);
}

void bind_pager(nb::module_& m) {
  nb::class_<RoutingTrace>(m, "RoutingTrace", "Which experts each layer of each step used.")
      .def_static("of_tokens", &trace_of_tokens, "ids"_a, "n_experts"_a,
                  "ids int32 (n_layers, n_tokens, n_used), as Model.routing gives: each token a step.")
      .def_static("of_steps", &trace_of_steps, "begin"_a, "experts"_a, "n_layers"_a, "n_experts"_a,
                  "Entry i, layer i % n_layers of step i // n_layers, is experts[begin[i]:begin[i + 1]].")
      .def("arrays", &trace_arrays, "(begin int64, experts int32), as of_steps takes them.")
      .def(
          "use", &use_of_steps, "n_steps"_a,
          "(rates, reuse) of the first steps, each [n_layers * n_experts], as ExpertPager.profile and reuse give them.")
      .def_prop_ro("n_steps", &RoutingTrace::n_steps)
      .def_prop_ro("n_layers", &RoutingTrace::n_layers)
      .def_prop_ro("n_experts", &RoutingTrace::n_experts);
  m.def("policy_names", [] {
    std::vector<std::string> names;
    for (const PolicyRow& row : policy_table()) {
      if (!row.needs_values) names.emplace_back(row.name);
    }
    return names;
  });
  m.def(
      "direct_read_alignment", [](const std::string& path) { return DirectAccess(*open_file(path)).alignment(); },
      "path"_a, "Of reads past the page cache, in bytes; 1 where the file system has none.");
  m.def("simulate_cache", &simulate, "trace"_a, "class_of_layer"_a, "n_slots"_a, "policy"_a,
        "profile"_a = std::vector<float>(), "warmup_steps"_a = 0,
        "Replays a trace: steps, uses, hits, misses_by_layer, misses (steps * layers). n_slots: of each size class.");
  m.def(
      "plan_slots",
      [](const std::vector<uint64_t>& slot_bytes, const std::vector<int64_t>& n_experts, uint64_t budget) {
        const SlotPlan plan = plan_slots(slot_bytes, n_experts, budget);
        nb::dict d;
        d["slots"] = plan.n_slots;
        d["bytes"] = plan.bytes;
        d["all_bytes"] = plan.all_bytes;
        d["least_bytes"] = plan.least_bytes;
        return d;
      },
      "slot_bytes"_a, "n_experts"_a, "budget"_a, "How many slots each size class gets of a budget in bytes.");
}

}  // namespace expertree
