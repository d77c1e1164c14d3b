// Drafting for Python: what a step did, the tables of plugs, and plugs written in Python. No logic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/engine/session.h"
#include "cpp/spec/drafter_table.h"
#include "cpp/spec/drafters/merged.h"
#include "cpp/spec/drafters/scripted.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

// A copy as a numpy array.
template <typename T>
nb::object array_of(std::span<const T> values, std::vector<size_t> shape) {
  auto* kept = new std::vector<T>(values.begin(), values.end());
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner));
}

template <typename T>
nb::object array_of(const std::vector<T>& values) {
  return array_of<T>(values, {values.size()});
}

// (rows, MoE layers, experts used), or None.
nb::object sets_array(const ExpertSets& sets) {
  if (sets.empty()) return nb::none();
  const auto n_layers = static_cast<size_t>(sets.n_layers);
  const auto n_used = static_cast<size_t>(sets.n_used);
  return array_of<int32_t>(sets.ids, {sets.ids.size() / (n_layers * n_used), n_layers, n_used});
}

// Arguments of expertree.DraftTree.
nb::tuple tree_arrays(const TokenTree& tree, const ExpertSets& sets) {
  return nb::make_tuple(array_of(tree.tokens), array_of(tree.parents), array_of(tree.depths), array_of(tree.scores),
                        sets_array(sets));
}

// The prices of one call of a selector; of no use after it.
class CostView {
 public:
  CostView(const StepCost& cost, const ExpertSets& sets) : cost_(&cost), sets_(&sets) {}
  void close() { cost_ = nullptr; }
  const StepCost& cost() const {
    if (cost_ == nullptr) throw Error(ErrorCode::kInvalidRequest, "a cost may be asked during select() only");
    return *cost_;
  }
  double step_seconds(const std::vector<int32_t>& nodes) const {
    return expertree::step_seconds(cost(), *sets_, nodes);
  }

 private:
  const StepCost* cost_;
  const ExpertSets* sets_;
};

// Holds a Python object whose last reference may go on any thread.
class Plug {
 public:
  explicit Plug(nb::object object)
      : object_(std::move(object)), name_(nb::cast<std::string>(object_.type().attr("__name__"))) {}
  ~Plug() {
    nb::gil_scoped_acquire gil;
    object_.reset();
  }
  Plug(const Plug&) = delete;
  Plug& operator=(const Plug&) = delete;
  const char* name() const { return name_.c_str(); }
  nb::object method(const char* name) const { return object_.attr(name); }

 private:
  nb::object object_;
  std::string name_;
};

// What a plug answered as a T. Throws kInvalidRequest for anything else.
template <typename T>
T answer_as(const Plug& plug, const char* method, nb::handle answer, const char* expected) {
  try {
    return nb::cast<T>(answer);
  } catch (const nb::cast_error&) {
    throw Error(ErrorCode::kInvalidRequest,
                std::string(plug.name()) + "." + method + " gives something else than " + expected);
  }
}

class PythonDrafter final : public Drafter {
 public:
  PythonDrafter(nb::object object, FeatureRequest features, int64_t n_embd)
      : plug_(std::move(object)), features_(std::move(features)), n_embd_(static_cast<size_t>(n_embd)) {}
  const char* name() const override { return plug_.name(); }
  FeatureRequest features() const override { return features_; }

  void observe(const CommittedRows& rows) override {
    nb::gil_scoped_acquire gil;
    const size_t n = rows.tokens.size();
    const size_t n_taps = features_.tap_layers.size();
    nb::object taps = nb::none();
    if (rows.taps != nullptr) taps = array_of<float>({rows.taps, n * n_taps * n_embd_}, {n, n_taps, n_embd_});
    nb::object hidden = nb::none();
    if (rows.last_hidden != nullptr) hidden = array_of<float>({rows.last_hidden, n * n_embd_}, {n, n_embd_});
    plug_.method("observe")(array_of<int32_t>(rows.tokens, {n}), rows.first_position, taps, hidden);
  }

  void truncate(int64_t length) override {
    nb::gil_scoped_acquire gil;
    plug_.method("truncate")(length);
  }

  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler&) override {
    nb::gil_scoped_acquire gil;
    const nb::object drafted = plug_.method("_draft")(array_of<int32_t>(history, {history.size()}), limits.max_nodes,
                                                      limits.max_depth, limits.top_k);
    auto [tokens, parents, scores] =
        answer_as<std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<float>>>(
            plug_, "draft", drafted, "tokens and parents of 32 bits, and scores");
    TokenTree tree{std::move(tokens), std::move(parents), {}, std::move(scores)};
    for (size_t i = 0; i < tree.parents.size(); ++i) {
      const int32_t parent = tree.parents[i];
      tree.depths.push_back(
          parent >= 0 && parent < static_cast<int32_t>(i) ? tree.depths[static_cast<size_t>(parent)] + 1 : 1);
    }
    return tree;
  }

 private:
  Plug plug_;
  FeatureRequest features_;
  size_t n_embd_;
};

class PythonSelector final : public Selector {
 public:
  PythonSelector(nb::object object, bool lossless) : plug_(std::move(object)), lossless_(lossless) {}
  const char* name() const override { return plug_.name(); }
  bool lossless() const override { return lossless_; }

  std::vector<int32_t> select(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost) override {
    nb::gil_scoped_acquire gil;
    const nb::object view = nb::cast(CostView(cost, sets));
    const auto close = [&] { nb::cast<CostView&>(view).close(); };
    try {
      auto nodes = answer_as<std::vector<int32_t>>(
          plug_, "select", plug_.method("_select")(tree_arrays(tree, sets), view), "indices of nodes");
      close();
      return nodes;
    } catch (...) {
      close();
      throw;
    }
  }

  void observe(const StepOutcome& outcome) override {
    nb::gil_scoped_acquire gil;
    const auto copy = [](std::span<const int32_t> nodes) { return array_of<int32_t>(nodes, {nodes.size()}); };
    plug_.method("_observe")(tree_arrays(*outcome.tree, {}), copy(outcome.selected), copy(outcome.accepted),
                             outcome.draft_seconds, outcome.verify_seconds);
  }

  bool wants_draft() override {
    nb::gil_scoped_acquire gil;
    const nb::object wanted = plug_.method("wants_draft")();
    const int truth = PyObject_IsTrue(wanted.ptr());
    if (truth < 0) throw nb::python_error();
    return truth != 0;
  }

 private:
  Plug plug_;
  bool lossless_;
};

class PythonPredictor final : public Predictor {
 public:
  PythonPredictor(nb::object object, ExpertSets shape) : plug_(std::move(object)), shape_(std::move(shape)) {}
  const char* name() const override { return plug_.name(); }

  ExpertSets predict(int32_t root_token, const TokenTree& tree) override {
    nb::gil_scoped_acquire gil;
    const nb::object ids =
        plug_.method("_predict")(root_token, tree_arrays(tree, {}), shape_.n_layers, shape_.n_experts, shape_.n_used);
    ExpertSets sets = shape_;
    if (!ids.is_none()) sets.ids = answer_as<std::vector<int32_t>>(plug_, "predict", ids, "expert ids");
    return sets;
  }

  void observe(std::span<const int32_t> tokens, const ExpertSets& used) override {
    nb::gil_scoped_acquire gil;
    plug_.method("observe")(array_of<int32_t>(tokens, {tokens.size()}), sets_array(used));
  }

 private:
  Plug plug_;
  ExpertSets shape_;  // without ids
};

// A name, options of the scripted drafter, an expertree.Drafter, or a list of these, whose trees are merged.
std::unique_ptr<Drafter> to_drafter(const nb::object& draft, const Session& session) {
  if (nb::isinstance<nb::list>(draft)) {
    std::vector<std::unique_ptr<Drafter>> parts;
    for (const nb::handle part : draft) parts.push_back(to_drafter(nb::borrow(part), session));
    return std::make_unique<MergedDrafter>(std::move(parts), session.model().hyperparameters().n_embd);
  }
  if (nb::isinstance<nb::str>(draft)) {
    const auto spec = nb::cast<std::string>(draft);
    nb::gil_scoped_release released;  // it may read a file
    return make_drafter(spec, {session.shared_model(), session.n_ctx()});
  }
  if (nb::isinstance<ScriptedOptions>(draft)) return make_scripted_drafter(nb::cast<ScriptedOptions>(draft));
  FeatureRequest features{nb::cast<std::vector<int32_t>>(draft.attr("tap_layers")),
                          nb::cast<bool>(draft.attr("last_hidden"))};
  return std::make_unique<PythonDrafter>(draft, std::move(features), session.model().hyperparameters().n_embd);
}

std::unique_ptr<Selector> to_selector(const nb::object& select) {
  if (nb::isinstance<nb::str>(select)) return make_selector(nb::cast<std::string>(select));
  return std::make_unique<PythonSelector>(select, nb::cast<bool>(select.attr("lossless")));
}

std::unique_ptr<Predictor> to_predictor(const nb::object& predict, const Session& session, HeadInputs* inputs) {
  if (predict.is_none()) return nullptr;
  const HyperParameters& h = session.model().hyperparameters();
  const auto n_layers = static_cast<int32_t>(session.model().n_moe_layers());
  const auto n_experts = static_cast<int32_t>(h.moe.n_experts);
  const auto n_used = static_cast<int32_t>(h.moe.n_used);
  if (nb::isinstance<nb::str>(predict)) {
    const PredictorContext context({n_layers, n_experts, n_used}, session.shared_model(), inputs);
    const auto spec = nb::cast<std::string>(predict);
    nb::gil_scoped_release released;  // it may read a file
    return make_predictor(spec, context);
  }
  return std::make_unique<PythonPredictor>(predict, ExpertSets{n_layers, n_experts, n_used, {}});
}

void bind_records(nb::module_& m) {
  nb::class_<StepRecord>(m, "StepRecord", "What one step did; see expertree.Step.")
      .def_ro("tokens", &StepRecord::tokens)
      .def_prop_ro("tree", [](const StepRecord& r) { return tree_arrays(r.tree, r.predicted); })
      .def_ro("selected", &StepRecord::selected)
      .def_ro("accepted", &StepRecord::accepted)
      .def_ro("n_rows", &StepRecord::n_rows)
      .def_ro("n_sequences", &StepRecord::n_sequences)
      .def_ro("n_pass_rows", &StepRecord::n_pass_rows)
      .def_ro("n_pass_experts", &StepRecord::n_pass_experts)
      .def_ro("predicted_seconds", &StepRecord::predicted_seconds)
      .def_ro("draft_seconds", &StepRecord::draft_seconds)
      .def_ro("select_seconds", &StepRecord::select_seconds)
      .def_ro("verify_seconds", &StepRecord::verify_seconds)
      .def_ro("n_experts", &StepRecord::n_experts)
      .def_ro("expert_hits", &StepRecord::expert_hits)
      .def_ro("expert_misses", &StepRecord::expert_misses)
      .def_ro("bytes_read", &StepRecord::bytes_read)
      .def_ro("plain_misses", &StepRecord::plain_misses)
      .def_ro("wait_seconds", &StepRecord::wait_seconds);
  nb::class_<CostView>(m, "StepCost", "What verifying will take, in seconds; for use during Selector.select().")
      .def("step_seconds", &CostView::step_seconds, "nodes"_a, "Of the root and these nodes.")
      .def(
          "base_seconds", [](const CostView& v, int64_t n_rows) { return v.cost().base_seconds(n_rows); }, "n_rows"_a)
      .def(
          "run_seconds",
          [](const CostView& v, int32_t layer, int32_t expert, int64_t n_rows) {
            return v.cost().run_seconds(layer, expert, n_rows);
          },
          "layer"_a, "expert"_a, "n_rows"_a)
      .def(
          "read_seconds",
          [](const CostView& v, int32_t layer, int32_t expert) { return v.cost().read_seconds(layer, expert); },
          "layer"_a, "expert"_a)
      .def(
          "iteration_seconds", [](const CostView& v, int64_t n_rows) { return v.cost().iteration_seconds(n_rows); },
          "n_rows"_a)
      .def("draft_seconds", [](const CostView& v) { return v.cost().draft_seconds(); });
  nb::class_<ScriptedOptions>(m, "ScriptedOptions")
      .def(nb::init<>())
      .def_rw("truth", &ScriptedOptions::truth)
      .def_rw("rates", &ScriptedOptions::rates)
      .def_rw("spread", &ScriptedOptions::spread)
      .def_rw("score_noise", &ScriptedOptions::score_noise)
      .def_rw("seconds_per_depth", &ScriptedOptions::seconds_per_depth)
      .def_rw("seed", &ScriptedOptions::seed);
}

template <typename Row>
nb::list rows_of(std::span<const Row> rows) {
  nb::list list;
  for (const Row& row : rows) list.append(nb::make_tuple(row.name, row.argument, row.summary));
  return list;
}

}  // namespace

void bind_speculation(nb::module_& m) {
  bind_records(m);
  m.def("drafter_infos", [] { return rows_of(drafter_table()); }, "(name, argument, summary) of each.");
  m.def("split_drafters", &split_drafters, "spec"_a, "The drafters that are merged in a name of several.");
  m.def("selector_infos", [] { return rows_of(selector_infos()); }, "(name, argument, summary) of each.");
  m.def("predictor_infos", [] { return rows_of(predictor_infos()); }, "(name, argument, summary) of each.");
  nb::class_<CostProfile>(m, "CostProfile", "What steps were found to cost.");
  m.def("cost_profile", &Session::cost_profile, "session"_a);
  m.def("restore_costs", &Session::restore_costs, "session"_a, "profile"_a);
  m.def("selector_state", &Session::selector_state, "session"_a);
  m.def(
      "restore_selector", [](Session& session, const std::vector<double>& state) { session.restore_selector(state); },
      "session"_a, "state"_a);
  m.def(
      "set_speculation",
      [](Session& session, const nb::object& draft, const nb::object& select, const nb::object& predict,
         int32_t max_nodes, int32_t max_depth, int32_t top_k) {
        std::unique_ptr<Selector> selector = to_selector(select);
        std::unique_ptr<Drafter> drafter = to_drafter(draft, session);
        std::unique_ptr<Predictor> predictor = to_predictor(predict, session, drafter->head_inputs());
        session.set_speculation(std::move(drafter), std::move(selector), std::move(predictor),
                                {max_nodes, max_depth, top_k});
      },
      "session"_a, "draft"_a, "select"_a, "predict"_a.none(), "max_nodes"_a, "max_depth"_a, "top_k"_a);
}

}  // namespace expertree
