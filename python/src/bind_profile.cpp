// Profiles for Python: the columns of a Profiler's tables. No logic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <vector>

#include "cpp/model/model.h"
#include "cpp/profile/profiler.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

template <typename T>
nb::object array_of(std::vector<T> values, const std::vector<size_t>& shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner));
}

template <typename T, typename Row, typename Get>
nb::object column(const std::vector<Row>& rows, const Get& get) {
  std::vector<T> values;
  values.reserve(rows.size());
  for (const Row& row : rows) values.push_back(static_cast<T>(get(row)));
  return array_of<T>(std::move(values), {rows.size()});
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

nb::dict step_columns(const Profiler& profiler) {
  using Step = Profiler::Step;
  const std::vector<Step>& steps = profiler.tables().steps;
  const int64_t zero = profiler.begin_ns();
  std::vector<double> zones;
  std::vector<int64_t> memory;
  for (const Step& s : steps) {
    for (const int64_t ns : s.zone_ns) zones.push_back(seconds(ns));
    zones.push_back(seconds(s.outside_ns));
    const StepCounters& c = s.counters;
    const uint64_t known = c.weights_bytes + c.expert_bytes + c.kv_bytes;
    const uint64_t other = c.process_bytes > known ? c.process_bytes - known : 0;
    for (const uint64_t bytes : {c.weights_bytes, c.expert_bytes, c.kv_bytes, other}) {
      memory.push_back(static_cast<int64_t>(bytes));
    }
  }
  const auto whole = [&](auto get) { return column<int32_t>(steps, get); };
  const auto bytes = [&](auto get) { return column<int64_t>(steps, get); };
  const auto real = [&](auto get) { return column<double>(steps, get); };
  nb::dict d;
  d["kind"] = column<uint8_t>(steps, [](const Step& s) { return s.kind; });
  d["session"] = bytes([](const Step& s) { return s.session; });
  d["thread"] = whole([](const Step& s) { return s.thread; });
  d["passes"] = whole([](const Step& s) { return s.n_passes; });
  d["start"] = real([&](const Step& s) { return seconds(s.begin_ns - zero); });
  d["wall"] = real([](const Step& s) { return seconds(s.end_ns - s.begin_ns); });
  d["zone_seconds"] = array_of<double>(std::move(zones), {steps.size(), kNumZones + 1});
  d["position"] = whole([](const Step& s) { return s.counters.position; });
  d["rows"] = whole([](const Step& s) { return s.n_rows; });
  d["tokens"] = whole([](const Step& s) { return s.counters.n_tokens; });
  d["last_token"] = whole([](const Step& s) { return s.counters.last_token; });
  d["predicted"] = real([](const Step& s) { return s.counters.predicted_seconds; });
  d["measured"] = real([](const Step& s) { return s.counters.measured_seconds; });
  d["experts_hit"] = whole([](const Step& s) { return s.pager.n_hits; });
  d["experts_late"] = whole([](const Step& s) { return s.pager.n_late; });
  d["experts_missed"] = whole([](const Step& s) { return s.pager.n_misses; });
  d["prefetched"] = whole([](const Step& s) { return s.pager.n_hint_reads; });
  d["prefetch_used"] = whole([](const Step& s) { return s.pager.n_hints_in_time; });
  d["prefetch_late"] = whole([](const Step& s) { return s.pager.n_hints_late; });
  d["prefetch_wasted"] = whole([](const Step& s) { return s.pager.n_hints_wasted; });
  d["bytes_experts"] = bytes([](const Step& s) { return s.pager.bytes_experts; });
  d["bytes_disk"] = bytes([](const Step& s) { return s.pager.bytes_disk; });
  d["bytes_overread"] = bytes([](const Step& s) { return s.pager.bytes_overread; });
  d["memory_bytes"] = array_of<int64_t>(std::move(memory), {steps.size(), 4});
  d["n_nodes"] = bytes([](const Step& s) { return s.n_nodes; });
  return d;
}

nb::dict node_columns(const Profiler& profiler) {
  const std::vector<ProfiledNode>& nodes = profiler.tables().nodes;
  nb::dict d;
  d["token"] = column<int32_t>(nodes, [](const ProfiledNode& n) { return n.token; });
  d["parent"] = column<int32_t>(nodes, [](const ProfiledNode& n) { return n.parent; });
  d["depth"] = column<int32_t>(nodes, [](const ProfiledNode& n) { return n.depth; });
  d["score"] = column<float>(nodes, [](const ProfiledNode& n) { return n.score; });
  d["verified"] = column<uint8_t>(nodes, [](const ProfiledNode& n) { return n.verified; });
  d["accepted"] = column<uint8_t>(nodes, [](const ProfiledNode& n) { return n.accepted; });
  return d;
}

nb::dict row_columns(const Profiler& profiler) {
  const Profiler::Tables& t = profiler.tables();
  const std::vector<size_t> shape = {t.row_tokens.size(), static_cast<size_t>(profiler.shape().n_moe_layers),
                                     static_cast<size_t>(profiler.shape().n_used)};
  nb::dict d;
  d["token"] = array_of(t.row_tokens, {shape[0]});
  d["node"] = array_of(t.row_nodes, {shape[0]});
  d["experts"] = array_of(t.row_experts, shape);
  d["predicted"] = array_of(t.row_predicted, shape);
  return d;
}

nb::dict event_columns(const Profiler& profiler) {
  using Event = Profiler::Event;
  const std::vector<Event>& events = profiler.tables().events;
  const int64_t zero = profiler.begin_ns();
  nb::dict d;
  d["step"] = column<int32_t>(events, [](const Event& e) { return e.step; });
  d["zone"] = column<uint8_t>(events, [](const Event& e) { return e.event.zone; });
  d["thread"] = column<int16_t>(events, [](const Event& e) { return e.thread; });
  d["layer"] = column<int16_t>(events, [](const Event& e) { return e.event.layer; });
  d["begin"] = column<double>(events, [&](const Event& e) { return seconds(e.event.begin_ns - zero); });
  d["end"] = column<double>(events, [&](const Event& e) { return seconds(e.event.end_ns - zero); });
  return d;
}

nb::object layer_seconds(const Profiler& profiler) {
  std::vector<double> values;
  for (const int64_t ns : profiler.tables().layer_ns) values.push_back(seconds(ns));
  return array_of<double>(std::move(values),
                          {static_cast<size_t>(profiler.shape().n_layers), kNumStepKinds, kNumZones});
}

nb::dict expert_columns(const Profiler& profiler, PagerActivity activity) {
  const std::vector<size_t> shape = {static_cast<size_t>(profiler.shape().n_moe_layers),
                                     static_cast<size_t>(profiler.shape().n_experts)};
  nb::dict d;
  d["resident"] = array_of(profiler.tables().resident, shape);
  d["hits"] = array_of(std::move(activity.n_hits), shape);
  d["late"] = array_of(std::move(activity.n_late), shape);
  d["misses"] = array_of(std::move(activity.n_misses), shape);
  return d;
}

nb::dict read_columns(const Profiler& profiler, const PagerActivity& activity) {
  using Read = PagerActivity::Read;
  const std::vector<Read>& reads = activity.reads;
  const int64_t zero = profiler.begin_ns();
  nb::dict d;
  d["key"] = column<int32_t>(reads, [](const Read& r) { return r.key; });
  d["reason"] = column<uint8_t>(reads, [](const Read& r) { return r.reason; });
  d["failed"] = column<uint8_t>(reads, [](const Read& r) { return r.failed; });
  d["bytes"] = column<int64_t>(reads, [](const Read& r) { return r.bytes; });
  d["begin"] = column<double>(reads, [&](const Read& r) { return seconds(r.begin_ns - zero); });
  d["end"] = column<double>(reads, [&](const Read& r) { return seconds(r.end_ns - zero); });
  return d;
}

nb::dict take_profile(Model& model, const std::shared_ptr<Profiler>& profiler) {
  PagerActivity activity;
  {
    nb::gil_scoped_release released;
    model.stop_profile();
    if (model.experts() != nullptr) activity = model.experts()->take_activity();
  }
  nb::dict d;
  d["steps"] = step_columns(*profiler);
  d["layers"] = layer_seconds(*profiler);
  d["nodes"] = node_columns(*profiler);
  d["routing"] = row_columns(*profiler);
  d["events"] = event_columns(*profiler);
  d["reads"] = read_columns(*profiler, activity);
  d["experts"] = expert_columns(*profiler, std::move(activity));
  d["wall_seconds"] = seconds(profiler->end_ns() - profiler->begin_ns());
  d["events_dropped"] = profiler->tables().n_events_dropped;
  return d;
}

}  // namespace

void bind_profile(nb::module_& m) {
  nb::class_<Profiler>(m, "Profiler", "A profile that runs; see expertree.profile.");
  m.def("start_profile", &Model::start_profile, "model"_a, "max_events"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("take_profile", &take_profile, "model"_a, "profiler"_a, "Ends the profile; its columns by table.");
}

}  // namespace expertree
