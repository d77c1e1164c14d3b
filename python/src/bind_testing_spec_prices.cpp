// expertree._core._testing: measured prices over places that a test decides, what selectors learn, and predictors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpp/model/model.h"
#include "cpp/spec/acceptance_fit.h"
#include "cpp/spec/back_off.h"
#include "cpp/spec/measured_cost.h"
#include "cpp/spec/predictor.h"
#include "cpp/spec/predictors/oracle.h"
#include "python/src/bind_testing_spec.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

class Places final : public Residency {
 public:
  Places(size_t n_layers, int32_t n_experts)
      : n_experts_(n_experts), states_(n_layers * static_cast<size_t>(n_experts), ExpertState::kResident) {}
  ExpertState state(int32_t layer, int32_t expert) const override { return states_[at(layer, expert)]; }
  void set(int32_t layer, int32_t expert, ExpertState state) { states_[at(layer, expert)] = state; }

 private:
  size_t at(int32_t layer, int32_t expert) const { return static_cast<size_t>(layer * n_experts_ + expert); }

  int32_t n_experts_;
  std::vector<ExpertState> states_;
};

struct MeasuredUnderTest : TestingCost {
  MeasuredUnderTest(const std::vector<double>& expert_bytes, int32_t n_experts)
      : places(expert_bytes.size(), n_experts) {
    auto made = std::make_unique<MeasuredCost>(&places, expert_bytes);
    measured = made.get();
    cost = std::move(made);
  }

  Places places;
  MeasuredCost* measured;
};

using CostLists = std::tuple<std::vector<int64_t>, std::vector<double>, std::vector<double>, double, double, double>;

void bind_measured_cost(nb::module_& m) {
  nb::class_<MeasuredUnderTest, TestingCost>(m, "MeasuredCost")
      .def(nb::init<const std::vector<double>&, int32_t>(), "expert_bytes"_a, "n_experts"_a)
      .def(
          "place",
          [](MeasuredUnderTest& t, int32_t layer, int32_t expert, const std::string& state) {
            t.places.set(layer, expert,
                         state == "missing"     ? ExpertState::kMissing
                         : state == "in flight" ? ExpertState::kInFlight
                         : state == "on device" ? ExpertState::kOnDevice
                                                : ExpertState::kResident);
          },
          "layer"_a, "expert"_a, "state"_a)
      .def(
          "set_costs",
          [](MeasuredUnderTest& t, double read_bytes_per_second, double run_base, double run_row, double step,
             double device_base, double device_row) {
            ExpertCosts costs{read_bytes_per_second, run_base, run_row, step};
            costs.device_base_seconds = device_base;
            costs.device_row_seconds = device_row;
            t.measured->set_costs(costs);
          },
          "read_bytes_per_second"_a, "run_base"_a, "run_row"_a, "step"_a = 0.0, "device_base"_a = 0.0,
          "device_row"_a = 0.0)
      .def(
          "record",
          [](MeasuredUnderTest& t, int64_t n_rows, int64_t n_experts, int64_t n_expert_rows, double seconds,
             double wait, double predicted, int64_t n_device_experts, int64_t n_device_rows) {
            t.measured->record(
                {n_rows, n_experts, n_expert_rows, seconds, wait, predicted, n_device_experts, n_device_rows});
          },
          "n_rows"_a, "n_experts"_a, "n_expert_rows"_a, "seconds"_a, "wait"_a = 0.0, "predicted"_a = 0.0,
          "n_device_experts"_a = 0, "n_device_rows"_a = 0)
      .def("record_draft", [](MeasuredUnderTest& t, double seconds) { t.measured->record_draft(seconds); })
      .def_prop_ro("correction", [](MeasuredUnderTest& t) { return t.measured->correction(); })
      .def("profile",
           [](MeasuredUnderTest& t) -> CostLists {
             CostProfile profile = t.measured->profile();
             return {profile.n_rows,     profile.base_seconds, profile.iteration_seconds,
                     profile.correction, profile.wait_seconds, profile.row_seconds};
           })
      .def("restore", [](MeasuredUnderTest& t, const CostLists& lists) {
        t.measured->restore({std::get<0>(lists), std::get<1>(lists), std::get<2>(lists), std::get<3>(lists),
                             std::get<4>(lists), std::get<5>(lists)});
      });
  m.def("calibration_rows", &calibration_rows, "max_rows"_a);
}

std::vector<std::vector<std::vector<int32_t>>> to_lists(const ExpertSets& sets, int64_t n_rows) {
  std::vector<std::vector<std::vector<int32_t>>> rows;
  for (int64_t row = 0; row < n_rows && !sets.empty(); ++row) {
    rows.emplace_back();
    for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
      const std::span<const int32_t> of = sets.of(row, layer);
      rows.back().emplace_back(of.begin(), of.end());
    }
  }
  return rows;
}

// A tree of the given tokens, all below the root: predictors look at tokens only.
auto predict(Predictor& predictor, int32_t root, const std::vector<int32_t>& tokens) {
  const TokenTree tree =
      testing_tree(std::vector<int32_t>(tokens.size(), -1), std::vector<float>(tokens.size(), 0.5f), tokens);
  return to_lists(predictor.predict(root, tree), tree.size() + 1);
}

struct PredictorUnderTest {
  PredictorUnderTest(const std::string& name, int32_t n_layers, int32_t n_experts, int32_t n_used)
      : predictor(make_predictor(name, {n_layers, n_experts, n_used})) {}
  // Of a model's shape, and with the model to ask.
  PredictorUnderTest(const std::string& name, const std::shared_ptr<Model>& model)
      : predictor(make_predictor(name, PredictorContext{{static_cast<int32_t>(model->n_moe_layers()),
                                                         static_cast<int32_t>(model->hyperparameters().moe.n_experts),
                                                         static_cast<int32_t>(model->hyperparameters().moe.n_used)},
                                                        model,
                                                        nullptr})) {}
  std::unique_ptr<Predictor> predictor;
};

void bind_predictors(nb::module_& m) {
  nb::class_<PredictorUnderTest>(m, "PredictorUnderTest")
      .def(nb::init<const std::string&, int32_t, int32_t, int32_t>(), "name"_a, "n_layers"_a, "n_experts"_a, "n_used"_a)
      .def(nb::init<const std::string&, const std::shared_ptr<Model>&>(), "name"_a, "model"_a)
      .def_prop_ro("name", [](PredictorUnderTest& p) { return p.predictor->name(); })
      .def_prop_ro("wants_hidden", [](PredictorUnderTest& p) { return p.predictor->wants_hidden(); })
      .def("observe_hidden",
           [](PredictorUnderTest& p, const std::vector<float>& hidden) { p.predictor->observe_hidden(hidden); })
      .def("predict", [](PredictorUnderTest& p, int32_t root,
                         const std::vector<int32_t>& tokens) { return predict(*p.predictor, root, tokens); })
      .def(
          "observe",
          [](PredictorUnderTest& p, const std::vector<int32_t>& tokens, const std::optional<TestingIds>& used,
             int32_t n_experts) { p.predictor->observe(tokens, testing_sets(used, n_experts)); },
          "tokens"_a, "used"_a, "n_experts"_a);
  m.def("predictor_infos", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> rows;
    for (const PredictorInfo& info : predictor_infos()) rows.emplace_back(info.name, info.argument, info.summary);
    return rows;
  });
  m.def("oracle_predict",
        [](const std::optional<TestingIds>& fed, int32_t n_experts, int32_t root, const std::vector<int32_t>& tokens) {
          OraclePredictor oracle;
          oracle.feed(testing_sets(fed, n_experts));
          return predict(oracle, root, tokens);
        });
}

}  // namespace

void bind_testing_spec_prices(nb::module_& m) {
  bind_measured_cost(m);
  bind_predictors(m);
  nb::class_<AcceptanceFit>(m, "AcceptanceFit")
      .def(nb::init<>())
      .def("probability", &AcceptanceFit::probability, "score"_a, "depth"_a = 1)
      .def(
          "observe",
          [](AcceptanceFit& f, float score, bool accepted, int32_t depth) { f.observe(score, depth, accepted); },
          "score"_a, "accepted"_a, "depth"_a = 1)
      .def("forget", &AcceptanceFit::forget)
      .def("state", &AcceptanceFit::state)
      .def("restore", [](AcceptanceFit& f, const std::vector<double>& state) { f.restore(state); })
      .def("least_score", &AcceptanceFit::least_score)
      .def("deviation", &AcceptanceFit::deviation)
      .def_prop_ro("slope", &AcceptanceFit::slope)
      .def_prop_ro("offset", &AcceptanceFit::offset);
  nb::class_<BackOff>(m, "BackOff")
      .def(nb::init<>())
      .def_prop_ro("resting", &BackOff::resting)

      .def(
          "loss",
          [](BackOff& b, bool verified, int64_t n_tokens, double draft, double verify, double wait, double misses,
             double plain_misses, double expected_plain) {
            return b.loss({true, verified, n_tokens, draft, verify, wait, misses, plain_misses}, expected_plain);
          },
          "verified"_a, "n_tokens"_a, "draft_seconds"_a, "verify_seconds"_a, "wait_seconds"_a = 0.0, "misses"_a = 0.0,
          "plain_misses"_a = 0.0, "expected_plain"_a = 1.0)
      .def("state", &BackOff::state)
      .def("restore", [](BackOff& b, const std::vector<double>& state) { b.restore(state); })
      .def(
          "observe",
          [](BackOff& b, bool drafted, bool verified, int64_t n_tokens, double draft, double verify, double wait,
             double misses, double plain_misses, double expected_plain) {
            b.observe({drafted, verified, n_tokens, draft, verify, wait, misses, plain_misses}, expected_plain);
          },
          "drafted"_a, "verified"_a, "n_tokens"_a, "draft_seconds"_a, "verify_seconds"_a, "wait_seconds"_a = 0.0,
          "misses"_a = 0.0, "plain_misses"_a = 0.0, "expected_plain"_a = 1.0);
}

}  // namespace expertree
