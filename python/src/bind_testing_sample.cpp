// expertree._core._testing: random numbers, canonical functions and the sampler.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/base/random.h"
#include "cpp/kernels/canonical_math.h"
#include "cpp/sample/gumbel.h"
#include "cpp/sample/sampler.h"

namespace nb = nanobind;

namespace expertree {
namespace {

template <typename T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using NumpyVector = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// n values, value i from function(i).
template <typename T, typename Function>
NumpyVector<T> generate(size_t n, Function function) {
  auto out = std::make_unique<T[]>(n);
  for (size_t i = 0; i < n; ++i) out[i] = function(i);
  T* data = out.release();
  return NumpyVector<T>(data, {n}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

NumpyVector<float> map(Vector<float> values, float (*function)(float)) {
  return generate<float>(values.shape(0), [&](size_t i) { return function(values.data()[i]); });
}

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const PhiloxBlock block = philox4x32_10(counter.data(), key.data());
  return {block.words[0], block.words[1], block.words[2], block.words[3]};
}

using Tokens = std::vector<int32_t>;

// A Sampler whose calls check the row's length and reuse one set of buffers.
class TestingSampler {
 public:
  TestingSampler(int64_t n_vocab, float temperature, int32_t top_k, float top_p, float min_p, float repeat_penalty,
                 float presence_penalty, float frequency_penalty, int32_t penalty_last_n,
                 std::optional<std::vector<std::pair<int32_t, float>>> logit_bias, uint64_t seed)
      : sampler_({temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, penalty_last_n,
                  logit_bias.value_or(std::vector<std::pair<int32_t, float>>()), seed},
                 n_vocab) {}

  int32_t sample(Vector<float> logits, int64_t position, const Tokens& history, const Tokens& path) {
    return sampler_.sample(checked(logits), position, {history, path});
  }

  // From the best of a row, with their ids.
  int32_t sample_best(Vector<float> logits, Vector<int32_t> ids, int64_t position) {
    return sampler_.sample(RowLogits{logits.data(), static_cast<int64_t>(ids.shape(0)), ids.data()}, position, {});
  }

  int32_t n_deciding() const { return sampler_.n_deciding(); }

  std::tuple<int32_t, float> sample_with_probability(Vector<float> logits, int64_t position, const Tokens& history,
                                                     const Tokens& path) {
    const SampledToken token = sampler_.sample_with_probability(checked(logits), position, {history, path});
    return {token.token, token.probability};
  }

  std::vector<std::tuple<int32_t, float, float>> rank(Vector<float> logits, int64_t position, size_t n,
                                                      const Tokens& history, const Tokens& path) {
    std::vector<RankedToken> ranked(n);
    ranked.resize(static_cast<size_t>(sampler_.rank(checked(logits), position, {history, path}, ranked)));
    std::vector<std::tuple<int32_t, float, float>> out;
    for (const RankedToken& token : ranked) out.emplace_back(token.token, token.score, token.probability);
    return out;
  }

  // The tokens of n positions in a row with the same logits and no history: for statistics.
  NumpyVector<int32_t> sample_positions(Vector<float> logits, int64_t first_position, size_t n) {
    const float* row = checked(logits);
    return generate<int32_t>(
        n, [&](size_t i) { return sampler_.sample(row, first_position + static_cast<int64_t>(i), {{}, {}}); });
  }

 private:
  const float* checked(const Vector<float>& logits) const {
    if (static_cast<int64_t>(logits.shape(0)) != sampler_.n_vocab()) {
      throw Error(ErrorCode::kInvalidRequest, "expected " + std::to_string(sampler_.n_vocab()) + " logits, found " +
                                                  std::to_string(logits.shape(0)));
    }
    return logits.data();
  }

  Sampler sampler_;
};

}  // namespace

void bind_testing_sample(nb::module_& m) {
  m.def("canonical_exp", [](Vector<float> x) { return map(x, canonical_exp); });
  m.def("canonical_log", [](Vector<float> x) { return map(x, canonical_log); });
  m.def("canonical_silu", [](Vector<float> x) { return map(x, canonical_silu); });

  m.def("philox4x32_10", &philox, nb::arg("counter"), nb::arg("key"));
  m.def("random_bits", [](uint64_t seed, int64_t position, Vector<int32_t> tokens) {
    return generate<uint64_t>(tokens.shape(0), [&](size_t i) { return random_bits(seed, position, tokens.data()[i]); });
  });
  m.def("uniform_from_bits", [](Vector<uint64_t> bits) {
    return generate<float>(bits.shape(0), [&](size_t i) { return uniform_from_bits(bits.data()[i]); });
  });
  m.def("uniform_from", &uniform_from, nb::arg("seed"), nb::arg("position"), nb::arg("token"));
  m.def("gumbel_from_bits", [](Vector<uint64_t> bits) {
    return generate<float>(bits.shape(0), [&](size_t i) { return gumbel_from_bits(bits.data()[i]); });
  });
  m.def("gumbel_upper_bound", [](Vector<uint64_t> bits) {
    return generate<float>(bits.shape(0), [&](size_t i) { return gumbel_upper_bound(bits.data()[i]); });
  });
  m.def("gumbel_noise", [](uint64_t seed, int64_t position, Vector<int32_t> tokens) {
    return generate<float>(tokens.shape(0), [&](size_t i) { return gumbel_noise(seed, position, tokens.data()[i]); });
  });
  m.def("draw_seed", &draw_seed);
  m.def("sampler_stage_names", [] {
    nb::list names;
    for (const StageRow& row : sampler_stages()) names.append(row.name);
    return names;
  });

  const Tokens none;
  nb::class_<TestingSampler>(m, "Sampler", "The sampler of a request; arguments as SamplerOptions.")
      .def(nb::init<int64_t, float, int32_t, float, float, float, float, float, int32_t,
                    std::optional<std::vector<std::pair<int32_t, float>>>, uint64_t>(),
           nb::arg("n_vocab"), nb::kw_only(), nb::arg("temperature") = 0.0f, nb::arg("top_k") = 0,
           nb::arg("top_p") = 1.0f, nb::arg("min_p") = 0.0f, nb::arg("repeat_penalty") = 1.0f,
           nb::arg("presence_penalty") = 0.0f, nb::arg("frequency_penalty") = 0.0f, nb::arg("penalty_last_n") = 64,
           nb::arg("logit_bias") = nb::none(), nb::arg("seed") = 0)
      .def("sample", &TestingSampler::sample, nb::arg("logits"), nb::arg("position"), nb::arg("history") = none,
           nb::arg("path") = none)
      .def("sample_best", &TestingSampler::sample_best, nb::arg("logits"), nb::arg("ids"), nb::arg("position"))
      .def_prop_ro("n_deciding", &TestingSampler::n_deciding)
      .def("sample_with_probability", &TestingSampler::sample_with_probability, nb::arg("logits"), nb::arg("position"),
           nb::arg("history") = none, nb::arg("path") = none)
      .def("rank", &TestingSampler::rank, nb::arg("logits"), nb::arg("position"), nb::arg("n"),
           nb::arg("history") = none, nb::arg("path") = none)
      .def("sample_positions", &TestingSampler::sample_positions, nb::arg("logits"), nb::arg("first_position"),
           nb::arg("n"), "Tokens for n positions in a row with the same logits and no history: for statistics.");
}

}  // namespace expertree
