// Hidden states and drafters, for tests without a session.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/model/model.h"
#include "cpp/spec/drafter_table.h"
#include "cpp/spec/drafters/eagle3.h"
#include "cpp/spec/drafters/mtp.h"
#include "cpp/spec/predictor.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

template <typename T>
nb::object to_numpy(std::vector<T> values, std::vector<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner));
}

using Rows = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using TreeArrays = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<int32_t>, std::vector<float>>;

class DrafterUnderTest {
 public:
  DrafterUnderTest(std::shared_ptr<Model> model, const std::string& spec, int64_t n_ctx)
      : model_(std::move(model)), drafter_(make_drafter(spec, {model_, n_ctx})) {}

  Drafter& drafter() { return *drafter_; }

  void observe(const std::vector<int32_t>& tokens, int64_t first_position, const Rows& taps, const Rows& last_hidden) {
    drafter_->observe({tokens, first_position, taps.data(), last_hidden.data()});
  }

  TreeArrays draft(const std::vector<int32_t>& history, std::tuple<int32_t, int32_t, int32_t> limits,
                   const SamplerOptions& options) {
    Sampler sampler(options, model_->hyperparameters().n_vocab);
    const auto [max_nodes, max_depth, top_k] = limits;
    tree_ = drafter_->draft(history, {max_nodes, max_depth, top_k}, sampler);
    tree_.check(drafter_->name(), model_->hyperparameters().n_vocab);
    return {tree_.tokens, tree_.parents, tree_.depths, tree_.scores};
  }

  Eagle3Drafter& eagle3() {
    auto* eagle3 = dynamic_cast<Eagle3Drafter*>(drafter_.get());
    if (eagle3 == nullptr) throw Error(ErrorCode::kInvalidRequest, "not an eagle3 drafter");
    return *eagle3;
  }

  using Expansions = std::vector<std::tuple<int32_t, int32_t, std::vector<float>>>;

  void keep_expansions() {
    if (auto* mtp = dynamic_cast<MtpDrafter*>(drafter_.get())) return mtp->keep_expansions(true);
    eagle3().keep_expansions(true);
  }

  Expansions expansions() {
    Expansions list;
    const auto add = [&](const auto& expansions) {
      for (const auto& e : expansions) list.emplace_back(e.token, e.parent, e.logits);
    };
    if (auto* mtp = dynamic_cast<MtpDrafter*>(drafter_.get())) {
      add(mtp->expansions());
    } else {
      add(eagle3().expansions());
    }
    return list;
  }

  // Of the last drafted tree: [1 + nodes][layers][n_used].
  nb::object predict(const std::string& spec, int32_t root) {
    const HyperParameters& h = model_->hyperparameters();
    const PredictorShape shape{static_cast<int32_t>(model_->n_moe_layers()), static_cast<int32_t>(h.moe.n_experts),
                               static_cast<int32_t>(h.moe.n_used)};
    const auto predictor = make_predictor(spec, PredictorContext{shape, model_, drafter_->head_inputs()});
    ExpertSets sets = predictor->predict(root, tree_);
    const size_t rows = sets.empty() ? 0 : static_cast<size_t>(tree_.size()) + 1;
    return to_numpy(std::move(sets.ids),
                    {rows, static_cast<size_t>(shape.n_layers), static_cast<size_t>(shape.n_used)});
  }

 private:
  std::shared_ptr<Model> model_;
  std::unique_ptr<Drafter> drafter_;
  TokenTree tree_;
};

void bind_drafter(nb::module_& m) {
  nb::class_<DrafterUnderTest>(m, "DrafterUnderTest")
      .def(nb::init<std::shared_ptr<Model>, const std::string&, int64_t>(), "model"_a, "spec"_a, "n_ctx"_a = 512)
      .def_prop_ro("name", [](DrafterUnderTest& d) { return d.drafter().name(); })
      .def_prop_ro("tap_layers", [](DrafterUnderTest& d) { return d.drafter().features().tap_layers; })
      .def_prop_ro("last_hidden", [](DrafterUnderTest& d) { return d.drafter().features().last_hidden; })
      .def_prop_ro("memory_bytes", [](DrafterUnderTest& d) { return d.drafter().memory_bytes(); })
      .def("observe", &DrafterUnderTest::observe, "tokens"_a, "first_position"_a, "taps"_a, "last_hidden"_a)
      .def("truncate", [](DrafterUnderTest& d, int64_t length) { d.drafter().truncate(length); })
      .def("draft", &DrafterUnderTest::draft, "history"_a, "limits"_a, "sampler"_a,
           "limits: (nodes, depth, top_k). (tokens, parents, depths, scores).")
      .def("keep_expansions", &DrafterUnderTest::keep_expansions)
      .def("expansions", &DrafterUnderTest::expansions, "[(token, expansion of its parent, logits)]")
      .def("predict", &DrafterUnderTest::predict, "spec"_a, "root"_a);
}

}  // namespace

void bind_testing_drafters(nb::module_& m) {
  bind_drafter(m);
  m.def(
      "hidden_states",
      [](Model& model, const std::vector<int32_t>& tokens, const std::vector<int32_t>& parents,
         const std::vector<int32_t>& tap_layers, bool last_hidden, int32_t n_best) {
        const HyperParameters& h = model.hyperparameters();
        const TokenBatch batch = TokenBatch::make(tokens, parents, h.n_vocab);
        SequenceState state = model.new_state(static_cast<int64_t>(tokens.size()));
        state.begin(batch);
        ForwardRequest request;
        request.logits = LogitRows::kAll;
        request.tap_layers = tap_layers;
        request.last_hidden = last_hidden;
        request.n_best = n_best;
        ForwardResult result;
        model.forward(state, batch, request, &result);
        const auto n_embd = static_cast<size_t>(h.n_embd);
        const size_t width = result.logits.size() / tokens.size();
        return nb::make_tuple(to_numpy(std::move(result.taps), {tokens.size(), tap_layers.size(), n_embd}),
                              to_numpy(std::move(result.last_hidden), {last_hidden ? tokens.size() : 0, n_embd}),
                              to_numpy(std::move(result.logits), {tokens.size(), width}));
      },
      "model"_a, "tokens"_a, "parents"_a, "tap_layers"_a, "last_hidden"_a, "n_best"_a = 0,
      "(taps [rows][taps][n_embd], last_hidden [rows][n_embd], logits [rows][n_vocab]) of a fresh sequence. n_best: "
      "that "
      "many logits of a row are enough, and if a device gives so many they have this width.");
}

}  // namespace expertree
