// `expertree._core._testing`: kernels and state of recurrent layers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/kernels/kernel_table.h"
#include "cpp/model/model.h"
#include "cpp/model/sequence_state.h"
#include "cpp/model/tree_scan.h"
#include "python/src/bind_testing_kernels.h"
#include "python/src/bindings.h"
#include "python/src/guarded_array.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

template <int kDims>
using In = nb::ndarray<const float, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<nb::numpy, float>;

void require_shape(bool fits) {
  if (!fits) throw Error(ErrorCode::kInvalidRequest, "the arrays' shapes do not go together");
}

Out to_numpy(const std::vector<float>& values, std::vector<size_t> shape) {
  auto* kept = new std::vector<float>(values);
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return Out(kept->data(), shape.size(), shape.data(), owner);
}

Out convolve(const std::string& isa, In<2> x, In<2> w) {
  require_shape(x.shape(0) == w.shape(0) && x.shape(1) == w.shape(1));
  const auto n = static_cast<int64_t>(x.shape(1));
  const auto n_taps = static_cast<int64_t>(x.shape(0));
  std::vector<std::unique_ptr<GuardedArray<float>>> rows;
  std::vector<const float*> taps;
  for (int64_t t = 0; t < n_taps; ++t) {
    rows.push_back(std::make_unique<GuardedArray<float>>(x.data() + t * n, n));
    taps.push_back(rows.back()->data());
  }
  const GuardedArray<float> weights(w.data(), n * n_taps);
  const GuardedArray<float> y(n);
  testing_kernels(isa).convolve(taps.data(), weights.data(), n_taps, n, y.data());
  return to_numpy({y.data(), y.data() + n}, {x.shape(1)});
}

// The columns lie in a wider state, whose others must stay as they are.
std::tuple<Out, Out> delta_scan(const std::string& isa, In<2> state, int64_t column, In<2> k, In<2> q, In<2> v,
                                In<1> decay, In<1> beta, bool put_out) {
  const size_t n = k.shape(0);
  const auto n_keys = static_cast<int64_t>(k.shape(1));
  const auto n_values = static_cast<int64_t>(v.shape(1));
  const auto stride = static_cast<int64_t>(state.shape(1));
  require_shape(static_cast<int64_t>(state.shape(0)) == n_keys && column >= 0 && column + n_values <= stride &&
                q.shape(0) == n && static_cast<int64_t>(q.shape(1)) == n_keys && v.shape(0) == n &&
                decay.shape(0) == n && beta.shape(0) == n);
  const GuardedArray<float> matrix(state.data(), n_keys * stride);
  const GuardedArray<float> keys(k.data(), static_cast<int64_t>(n) * n_keys);
  const GuardedArray<float> queries(q.data(), static_cast<int64_t>(n) * n_keys);
  const GuardedArray<float> values(v.data(), static_cast<int64_t>(n) * n_values);
  const GuardedArray<float> out(static_cast<int64_t>(n) * n_values);
  std::vector<DeltaRow> rows(n);
  for (size_t i = 0; i < n; ++i) {
    const auto r = static_cast<int64_t>(i);
    rows[i] = {keys.data() + r * n_keys,
               put_out ? queries.data() + r * n_keys : nullptr,
               values.data() + r * n_values,
               decay.data()[i],
               beta.data()[i],
               put_out ? out.data() + r * n_values : nullptr};
  }
  testing_kernels(isa).delta_scan(
      {matrix.data() + column, stride, n_keys, n_values, rows.data(), static_cast<int64_t>(n)});
  return {to_numpy({matrix.data(), matrix.data() + n_keys * stride}, {state.shape(0), state.shape(1)}),
          to_numpy({out.data(), out.data() + static_cast<int64_t>(n) * n_values}, {n, v.shape(1)})};
}

// A sequence without a session around it: what truncate() finds is seen, and batches are begun either way.
class StateUnderTest {
 public:
  StateUnderTest(std::shared_ptr<Model> model, int64_t n_ctx)
      : model_(std::move(model)), state_(model_->new_state(n_ctx)) {}

  // Logits of all rows, which are then pending.
  Out run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& parents, bool keep_all) {
    const auto n_vocab = model_->hyperparameters().n_vocab;
    const TokenBatch batch = TokenBatch::make(tokens, parents, n_vocab);
    state_.begin(batch, keep_all ? Keep::kAll : Keep::kAnyPath);
    ForwardResult result;
    model_->forward(state_, batch, {}, &result);
    return to_numpy(result.logits, {tokens.size(), static_cast<size_t>(n_vocab)});
  }
  void commit(const std::vector<int32_t>& path) { state_.commit(path); }
  void rollback() { state_.rollback(); }
  int64_t truncate(int64_t length) { return state_.truncate(length); }
  int64_t n_committed() const { return state_.n_committed(); }
  std::unique_ptr<StateUnderTest> branch() const {
    auto copy = std::make_unique<StateUnderTest>(model_, state_.n_ctx());
    copy->state_ = state_.branch(model_->hyperparameters());
    return copy;
  }

 private:
  std::shared_ptr<Model> model_;
  SequenceState state_;
};

}  // namespace

void bind_testing_recurrent(nb::module_& m) {
  m.def("convolve", &convolve, "isa"_a, "x"_a, "w"_a, "x, w: float32 [taps, n], oldest first. Returns float32 [n].");
  m.def(
      "delta_scan", &delta_scan, "isa"_a, "state"_a, "column"_a, "k"_a, "q"_a, "v"_a, "decay"_a, "beta"_a,
      "put_out"_a = true,
      "state: float32 [keys, width], of which columns column .. column + values - 1 are moved; k, q: [rows, keys]; v: "
      "[rows, values]. Returns the state and what was put out, [rows, values].");
  nb::class_<StateUnderTest>(m, "StateUnderTest")
      .def(nb::init<std::shared_ptr<Model>, int64_t>(), "model"_a, "n_ctx"_a)
      .def("run", &StateUnderTest::run, "tokens"_a, "parents"_a = std::vector<int32_t>(), "keep_all"_a = false)
      .def("commit", &StateUnderTest::commit)
      .def("rollback", &StateUnderTest::rollback)
      .def("truncate", &StateUnderTest::truncate, "Returns the length that is left.")
      .def("branch", &StateUnderTest::branch)
      .def_prop_ro("n_committed", &StateUnderTest::n_committed);
  m.def(
      "tree_scan",
      [](const std::vector<int32_t>& parents) {
        const TreeScan scan = plan_tree_scan(parents);
        std::vector<std::tuple<int32_t, int32_t, int32_t, int32_t>> segments;
        for (const TreeScan::Segment& s : scan.segments) segments.emplace_back(s.begin, s.end, s.from, s.keep);
        return std::make_tuple(scan.order, segments, scan.n_slots);
      },
      "parents"_a, "(order, [(begin, end, from, keep)], n_slots)");
}

}  // namespace expertree
