// Timings of what reads a sequence's past: attention over cells, and the recurrent state.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "cpp/model/cache_types.h"
#include "python/src/bind_testing_kernels.h"
#include "python/src/kernel_timing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

std::vector<float> ramp(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u >> 8) % 2001) / 1000.0f - 1.0f;
  return x;
}

nb::dict timed(double seconds, int64_t bytes) {
  nb::dict result;
  result["seconds"] = seconds;
  result["gb_per_s"] = static_cast<double>(bytes) / seconds * 1e-9;
  return result;
}

// One KV head: `heads` query heads of `rows` rows over `positions` cells. Caches are used in turn, which together fill
// buffer_bytes.
nb::dict time_attend(const std::string& isa, const std::string& type_name, int64_t heads, int64_t dim,
                     int64_t positions, int64_t rows, double seconds, int64_t buffer_bytes) {
  const KernelTable& kernels = testing_kernels(isa);
  const DType type = cache_type(type_name);
  const int64_t row_bytes = cache_row_bytes(type, dim);
  const int64_t plane = row_bytes * positions;
  const int64_t copies = std::max<int64_t>(1, buffer_bytes / (2 * plane));
  const Pages cells(2 * plane * copies + 128, true);
  const std::vector<float> x = ramp(dim * 61);
  for (int64_t i = 0; i < 2 * positions * copies; ++i) {
    write_cache_row(kernels, x.data() + i % 60 * dim, dim, type, cells.data() + i * row_bytes);
  }
  const std::vector<float> q = ramp(rows * heads * dim);
  std::vector<float> scratch(static_cast<size_t>(attend_scratch_floats(dim, dim)));
  std::vector<float> out(static_cast<size_t>(rows * heads * dim));
  std::vector<AttendArgs> args(static_cast<size_t>(rows));
  nb::gil_scoped_release release;
  const double best = best_seconds(seconds, 1, [&](int call) {
    const std::byte* keys = cells.data() + call % copies * 2 * plane;
    for (int64_t r = 0; r < rows; ++r) {
      AttendArgs& a = args[static_cast<size_t>(r)];
      a.q = q.data() + r * heads * dim;
      a.q_stride = a.head_dim_k = a.head_dim_v = a.out_stride = dim;
      a.n_heads = heads;
      a.k = {keys, row_bytes, type};
      a.v = {keys + plane, row_bytes, type};
      a.scratch = scratch.data();
      a.n_prefix = positions - rows + 1 + r;
      a.scale = 0.1f;
      a.out = out.data() + r * heads * dim;
    }
    kernels.attend(args.data(), rows);
  });
  nb::gil_scoped_acquire acquire;
  return timed(best, 2 * plane);
}

// One head's state [keys][values], of which there are so many that they fill buffer_bytes, over `rows` tokens.
nb::dict time_delta_scan(const std::string& isa, int64_t n_keys, int64_t n_values, int64_t rows, double seconds,
                         int64_t buffer_bytes) {
  const KernelTable& kernels = testing_kernels(isa);
  const int64_t state = n_keys * n_values * static_cast<int64_t>(sizeof(float));
  const int64_t copies = std::max<int64_t>(1, buffer_bytes / state);
  const Pages states(state * copies, true);
  const std::vector<float> x = ramp(rows * (2 * n_keys + n_values));
  std::vector<float> out(static_cast<size_t>(rows * n_values));
  std::vector<DeltaRow> tokens;
  for (int64_t r = 0; r < rows; ++r) {
    const float* at = x.data() + r * (2 * n_keys + n_values);
    tokens.push_back({at, at + n_keys, at + 2 * n_keys, 0.9f, 0.01f, out.data() + r * n_values});
  }
  nb::gil_scoped_release release;
  const double best = best_seconds(seconds, 1, [&](int call) {
    auto* floats = reinterpret_cast<float*>(states.data() + call % copies * state);
    kernels.delta_scan({floats, n_values, n_keys, n_values, tokens.data(), rows});
  });
  nb::gil_scoped_acquire acquire;
  return timed(best, 2 * state);
}

}  // namespace

void bind_testing_sequence_timing(nb::module_& m) {
  m.def("time_attend", &time_attend, "isa"_a, "type"_a, "heads"_a, "dim"_a, "positions"_a, "rows"_a, "seconds"_a,
        "buffer_bytes"_a = int64_t{0},
        "Best time of one call on one core: dict of seconds, gb_per_s (keys and values). type: f32, f16 or q8_0.");
  m.def("time_delta_scan", &time_delta_scan, "isa"_a, "n_keys"_a, "n_values"_a, "rows"_a, "seconds"_a,
        "buffer_bytes"_a = int64_t{0},
        "Best time of one call on one core: dict of seconds, gb_per_s (the state, read and written once).");
}

}  // namespace expertree
