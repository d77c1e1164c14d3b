// Recorded runs and their replay for Python. No logic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/engine/trace_replay.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Begins = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sets = nb::ndarray<const int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

ExpertSets rows_of(const Sets& sets, int64_t begin, int64_t end, int32_t n_experts) {
  const auto n_layers = static_cast<int32_t>(sets.shape(1));
  const auto n_used = static_cast<int32_t>(sets.shape(2));
  const int64_t row = static_cast<int64_t>(n_layers) * n_used;
  if (begin < 0 || end < begin || end > static_cast<int64_t>(sets.shape(0))) {
    throw Error(ErrorCode::kInvalidRequest, "recorded run: routing has " + std::to_string(sets.shape(0)) +
                                                " rows, which are not those of its trees");
  }
  return {n_layers, n_experts, n_used, {sets.data() + begin * row, sets.data() + end * row}};
}

RecordedRun make_run(const Ints& text, const Sets& prompt, const Begins& node_begin, const Ints& tokens,
                     const Ints& parents, const Floats& scores, const Sets& routed,
                     const std::optional<Sets>& predicted, int32_t n_experts, int64_t n_vocab) {
  RecordedRun run;
  run.text.assign(text.data(), text.data() + text.size());
  run.prompt = rows_of(prompt, 0, static_cast<int64_t>(prompt.shape(0)), n_experts);
  const auto n_nodes = static_cast<int64_t>(tokens.size());
  for (size_t i = 0; i + 1 < node_begin.size(); ++i) {
    const int64_t begin = node_begin.data()[i];
    const int64_t end = node_begin.data()[i + 1];
    if (begin < 0 || end < begin || end > n_nodes || parents.size() != tokens.size() ||
        scores.size() != tokens.size()) {
      throw Error(ErrorCode::kInvalidRequest,
                  "recorded run: tree " + std::to_string(i) + " lies outside its arrays; record it again");
    }
    RecordedRun::Position position;
    for (int64_t v = begin; v < end; ++v) {
      const int32_t parent = parents.data()[v];
      TokenTree& tree = position.tree;
      const bool is_node = parent >= 0 && parent < static_cast<int32_t>(tree.size());
      tree.depths.push_back(is_node ? tree.depths[static_cast<size_t>(parent)] + 1 : 1);
      tree.tokens.push_back(tokens.data()[v]);
      tree.parents.push_back(parent);
      tree.scores.push_back(scores.data()[v]);
    }
    // A row for each root as well.
    const int64_t first_row = begin + static_cast<int64_t>(i);
    const int64_t end_row = end + static_cast<int64_t>(i) + 1;
    position.routed = rows_of(routed, first_row, end_row, n_experts);
    if (predicted) {
      position.predicted = rows_of(*predicted, first_row, end_row, n_experts);
      if (!position.predicted.empty() && position.predicted.ids.front() < 0) position.predicted.ids.clear();  // unknown
    }
    run.positions.push_back(std::move(position));
  }
  run.check(n_vocab);
  return run;
}

template <typename T, typename Get>
nb::object column(const std::vector<ReplayedStep>& steps, const Get& get) {
  auto* values = new std::vector<T>;
  for (const ReplayedStep& step : steps) values->push_back(get(step));
  nb::capsule owner(values, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(values->data(), {values->size()}, owner));
}

nb::dict columns(const std::vector<ReplayedStep>& steps) {
  const auto whole = [&](auto get) { return column<int64_t>(steps, get); };
  const auto real = [&](auto get) { return column<double>(steps, get); };
  nb::dict d;
  d["tokens"] = whole([](const ReplayedStep& s) { return s.n_tokens; });
  d["drafted"] = whole([](const ReplayedStep& s) { return s.n_drafted; });
  d["rows"] = whole([](const ReplayedStep& s) { return s.n_rows; });
  d["accepted"] = whole([](const ReplayedStep& s) { return s.n_accepted; });
  d["experts"] = whole([](const ReplayedStep& s) { return s.pass.n_experts; });
  d["fetched"] = whole([](const ReplayedStep& s) { return s.pass.n_fetched; });
  d["from_disk"] = whole([](const ReplayedStep& s) { return s.pass.n_from_disk; });
  d["plain_misses"] = real([](const ReplayedStep& s) { return s.plain_misses; });
  d["bytes_fetched"] = real([](const ReplayedStep& s) { return s.pass.bytes_fetched; });
  d["bytes_from_disk"] = real([](const ReplayedStep& s) { return s.pass.bytes_from_disk; });
  d["verify_seconds"] = real([](const ReplayedStep& s) { return s.pass.seconds; });
  d["wait_seconds"] = real([](const ReplayedStep& s) { return s.pass.wait_seconds; });
  d["predicted_seconds"] = real([](const ReplayedStep& s) { return s.predicted_seconds; });
  d["draft_seconds"] = real([](const ReplayedStep& s) { return s.draft_seconds; });
  d["select_seconds"] = real([](const ReplayedStep& s) { return s.select_seconds; });
  return d;
}

}  // namespace

void bind_replay(nb::module_& m) {
  nb::class_<RecordedRun>(m, "RecordedRun", "A recorded sequence; see expertree.speculation_trace.")
      .def(
          "__init__",
          [](RecordedRun* self, const Ints& text, const Sets& prompt, const Begins& node_begin, const Ints& tokens,
             const Ints& parents, const Floats& scores, const Sets& routed, const std::optional<Sets>& predicted,
             int32_t n_experts, int64_t n_vocab) {
            new (self) RecordedRun(
                make_run(text, prompt, node_begin, tokens, parents, scores, routed, predicted, n_experts, n_vocab));
          },
          "text"_a, "prompt"_a, "node_begin"_a, "tokens"_a, "parents"_a, "scores"_a, "routed"_a, "predicted"_a.none(),
          "n_experts"_a, "n_vocab"_a);
  nb::class_<ReplayMachine>(m, "ReplayMachine", "See cpp/engine/replay_machine.h.")
      .def(nb::init<>())
      .def_rw("class_of_layer", &ReplayMachine::class_of_layer)
      .def_rw("n_slots", &ReplayMachine::n_slots)
      .def_rw("n_behind", &ReplayMachine::n_behind)
      .def_rw("policy", &ReplayMachine::policy)
      .def_rw("expert_bytes", &ReplayMachine::expert_bytes)
      .def_rw("fetch_seconds", &ReplayMachine::fetch_seconds)
      .def_rw("disk_seconds", &ReplayMachine::disk_seconds)
      .def_rw("run_base_seconds", &ReplayMachine::run_base_seconds)
      .def_rw("run_row_seconds", &ReplayMachine::run_row_seconds)
      .def_rw("base_seconds", &ReplayMachine::base_seconds)
      .def_rw("draft_seconds", &ReplayMachine::draft_seconds);
  m.def(
      "replay",
      [](const std::vector<const RecordedRun*>& runs, const ReplayMachine& machine, const std::string& select,
         bool oracle, bool calibrate) {
        std::vector<ReplayedStep> steps;
        {
          nb::gil_scoped_release released;
          steps = replay(runs, machine, {select, oracle, calibrate});
        }
        return columns(steps);
      },
      "runs"_a, "machine"_a, "select"_a, "oracle"_a = false, "calibrate"_a = true,
      "Columns of all steps; select \"\" is plain decoding.");
}

}  // namespace expertree
