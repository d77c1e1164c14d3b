// expertree._core._testing: selectors over trees and prices that a test makes up.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/spec/selector.h"
#include "python/src/bind_testing_spec.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {

TokenTree testing_tree(const std::vector<int32_t>& parents, const std::vector<float>& scores,
                       const std::vector<int32_t>& tokens) {
  TokenTree tree;
  ET_CHECK(parents.size() == scores.size() && (tokens.empty() || tokens.size() == parents.size()));
  for (size_t i = 0; i < parents.size(); ++i) {
    ET_CHECK(parents[i] >= -1 && parents[i] < static_cast<int32_t>(i));
    tree.tokens.push_back(tokens.empty() ? static_cast<int32_t>(i) : tokens[i]);
    tree.parents.push_back(parents[i]);
    tree.depths.push_back(parents[i] < 0 ? 1 : tree.depths[static_cast<size_t>(parents[i])] + 1);
    tree.scores.push_back(scores[i]);
  }
  return tree;
}

ExpertSets testing_sets(const std::optional<TestingIds>& ids, int32_t n_experts) {
  ExpertSets sets;
  if (!ids) return sets;
  sets.n_layers = static_cast<int32_t>(ids->shape(1));
  sets.n_used = static_cast<int32_t>(ids->shape(2));
  sets.n_experts = n_experts;
  sets.ids.assign(ids->data(), ids->data() + ids->size());
  return sets;
}

namespace {

using Prices = nb::ndarray<const double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// Prices from tables.
class TableCost final : public StepCost {
 public:
  // prices: [n_layers][n_experts][read, run_first, run_row]; base, iteration: of 1, 2, .. rows, the last for all beyond
  TableCost(const Prices& prices, std::vector<double> base, std::vector<double> iteration, double draft)
      : n_experts_(static_cast<int32_t>(prices.shape(1))),
        prices_(prices.data(), prices.data() + prices.size()),
        base_(std::move(base)),
        iteration_(std::move(iteration)),
        draft_(draft) {
    ET_CHECK(prices.shape(2) == 3 && !base_.empty() && !iteration_.empty());
  }

  double base_seconds(int64_t n_rows) const override { return at(base_, n_rows); }
  double iteration_seconds(int64_t n_rows) const override { return at(iteration_, n_rows); }
  double draft_seconds() const override { return draft_; }
  double read_seconds(int32_t layer, int32_t expert) const override { return of(layer, expert)[0]; }
  double run_seconds(int32_t layer, int32_t expert, int64_t n_rows) const override {
    const double* price = of(layer, expert);
    return price[1] + static_cast<double>(n_rows - 1) * price[2];
  }

 private:
  static double at(const std::vector<double>& of_rows, int64_t n_rows) {
    return of_rows[std::min(static_cast<size_t>(n_rows), of_rows.size()) - 1];
  }
  const double* of(int32_t layer, int32_t expert) const {
    return prices_.data() +
           3 * (static_cast<size_t>(layer) * static_cast<size_t>(n_experts_) + static_cast<size_t>(expert));
  }

  int32_t n_experts_;
  std::vector<double> prices_;
  std::vector<double> base_;
  std::vector<double> iteration_;
  double draft_;
};

// The selector that is tested, with the tree of its last choice.
class SelectorUnderTest {
 public:
  explicit SelectorUnderTest(const std::string& spec) : selector_(make_selector(spec)) {}

  Selector& get() { return *selector_; }

  std::vector<int32_t> select(const std::vector<int32_t>& parents, const std::vector<float>& scores,
                              const TestingCost& cost, const std::optional<TestingIds>& ids, int32_t n_experts) {
    tree_ = testing_tree(parents, scores, {});
    selected_ = selector_->select(tree_, testing_sets(ids, n_experts), *cost.cost);
    return selected_;
  }

  void observe(const std::vector<int32_t>& accepted, double draft_seconds, double verify_seconds) {
    selector_->observe({&tree_, selected_, accepted, draft_seconds, verify_seconds});
  }

  void observe_plain(double seconds) {
    tree_ = {};
    selected_.clear();
    selector_->observe({&tree_, {}, {}, 0.0, seconds});
  }

  // The shortest time of one choice.
  double best_seconds(const std::vector<int32_t>& parents, const std::vector<float>& scores, const TestingCost& cost,
                      const std::optional<TestingIds>& ids, int32_t n_experts, int32_t n_times) {
    const TokenTree tree = testing_tree(parents, scores, {});
    const ExpertSets sets = testing_sets(ids, n_experts);
    double best = 1e30;
    for (int32_t i = 0; i < n_times; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      selector_->select(tree, sets, *cost.cost);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
  }

 private:
  std::unique_ptr<Selector> selector_;
  TokenTree tree_;
  std::vector<int32_t> selected_;
};

std::vector<std::tuple<std::string, std::string, std::string>> infos() {
  std::vector<std::tuple<std::string, std::string, std::string>> rows;
  for (const SelectorInfo& info : selector_infos()) rows.emplace_back(info.name, info.argument, info.summary);
  return rows;
}

}  // namespace

void bind_testing_spec(nb::module_& m) {
  nb::class_<TestingCost>(m, "StepCost")
      .def("base_seconds", [](const TestingCost& c, int64_t n) { return c.cost->base_seconds(n); })
      .def("iteration_seconds", [](const TestingCost& c, int64_t n) { return c.cost->iteration_seconds(n); })
      .def("draft_seconds", [](const TestingCost& c) { return c.cost->draft_seconds(); })
      .def("read_seconds", [](const TestingCost& c, int32_t l, int32_t e) { return c.cost->read_seconds(l, e); })
      .def("run_seconds",
           [](const TestingCost& c, int32_t l, int32_t e, int64_t n) { return c.cost->run_seconds(l, e, n); })
      .def("expert_prices",
           [](const TestingCost& c, int32_t layer, const std::vector<int32_t>& experts) {
             std::vector<ExpertPrice> prices(experts.size());
             c.cost->expert_prices(layer, experts, prices.data());
             std::vector<std::tuple<double, double, double>> out;
             for (const ExpertPrice& p : prices) out.emplace_back(p.read, p.run_first, p.run_row);
             return out;
           })
      .def(
          "step_seconds",
          [](const TestingCost& c, const std::optional<TestingIds>& sets, int32_t n_experts,
             const std::vector<int32_t>& nodes) { return step_seconds(*c.cost, testing_sets(sets, n_experts), nodes); },
          "sets"_a.none(), "n_experts"_a, "nodes"_a);
  m.def(
      "table_cost",
      [](const Prices& prices, std::vector<double> base, std::vector<double> iteration, double draft) {
        return new TestingCost{std::make_unique<TableCost>(prices, std::move(base), std::move(iteration), draft)};
      },
      "prices"_a, "base"_a, "iteration"_a, "draft"_a = 0.0, nb::rv_policy::take_ownership,
      "prices: [n_layers][n_experts][read, run_first, run_row] in seconds; base, iteration: of 1, 2, .. rows");
  nb::class_<SelectorUnderTest>(m, "SelectorUnderTest")
      .def(nb::init<const std::string&>(), "spec"_a)
      .def_prop_ro("name", [](SelectorUnderTest& s) { return s.get().name(); })
      .def_prop_ro("lossless", [](SelectorUnderTest& s) { return s.get().lossless(); })
      .def("least_score", [](SelectorUnderTest& s) { return s.get().least_score(); })
      .def("state", [](SelectorUnderTest& s) { return s.get().state(); })
      .def(
          "restore", [](SelectorUnderTest& s, const std::vector<double>& state) { s.get().restore(state); }, "state"_a)
      .def("wants_draft", [](SelectorUnderTest& s) { return s.get().wants_draft(); })
      .def("select", &SelectorUnderTest::select, "parents"_a, "scores"_a, "cost"_a, "sets"_a.none() = nb::none(),
           "n_experts"_a = 0, "sets: int32 [1 + nodes][n_layers][n_used], the root first")
      .def("observe", &SelectorUnderTest::observe, "accepted"_a, "draft_seconds"_a, "verify_seconds"_a,
           "What the last select() came to.")
      .def("observe_plain", &SelectorUnderTest::observe_plain, "seconds"_a, "A step without a draft.")
      .def("best_seconds", &SelectorUnderTest::best_seconds, "parents"_a, "scores"_a, "cost"_a, "sets"_a.none(),
           "n_experts"_a, "n_times"_a);
  m.def("selector_infos", &infos, "[(name, argument, summary)]");
}

}  // namespace expertree
