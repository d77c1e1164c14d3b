// Kernel timings for tools/bench_kernels.py, taken inside C++, and the machine limits they are fractions of.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "python/src/bind_testing_kernels.h"
#include "python/src/kernel_timing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

// Times one matmul on one core. `copies` matrices are used in turn; with one column they exceed every cache.
nb::dict time_matmul(const std::string& isa, const std::string& type_name, int64_t rows, int64_t k, int64_t columns,
                     double seconds, bool huge_pages, int64_t min_buffer_bytes) {
  const KernelTable& kernels = testing_kernels(isa);
  const DTypeInfo& info = testing_dtype(type_name);
  const int64_t w_bytes = rows * row_bytes(info.dtype, k);
  const int64_t copies = std::max<int64_t>(1, (min_buffer_bytes + w_bytes - 1) / w_bytes);
  const Pages weights(w_bytes * copies, huge_pages);
  weights.fill();

  const int64_t block = info.activation == ActivationFormat::kQ8_256 ? 256 : 32;
  std::vector<float> x(static_cast<size_t>(columns * k));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u >> 8) % 2001) / 1000.0f - 1.0f;
  const int64_t q_stride = (k + 63) / 64 * 64;
  const Pages q(columns * q_stride, huge_pages);
  std::vector<float> d(static_cast<size_t>(columns * (k / block + 1)));
  std::vector<int16_t> sums16(static_cast<size_t>(columns * (k / 16 + 1)));
  const QuantizedRows x_q = {
      reinterpret_cast<int8_t*>(q.data()), d.data(), sums16.data(), k, q_stride, k / block, k / 16};
  for (int64_t c = 0; c < columns && info.activation != ActivationFormat::kF32; ++c) {
    (block == 32 ? kernels.quantize_q8_32 : kernels.quantize_q8_256)(
        x.data() + c * k, k, x_q.q + c * q_stride, x_q.d + c * x_q.d_stride, x_q.sums16 + c * x_q.sums_stride);
  }
  std::vector<float> y(static_cast<size_t>(columns * rows));
  MatmulArgs args = {};
  args.w_row_bytes = row_bytes(info.dtype, k);
  args.k = k;
  args.row_end = rows;
  args.x_f32 = x.data();
  args.x_stride = k;
  args.x_q = &x_q;
  args.n_columns = columns;
  args.y = y.data();
  args.y_stride = rows;
  const MatmulFn function = matmul_of(kernels, info.dtype);

  double best;
  {
    nb::gil_scoped_release release;
    const int group = static_cast<int>(std::clamp<int64_t>((16 << 20) / w_bytes, 1, copies));
    best = best_seconds(seconds, columns == 1 ? group : 1, [&](int call) {
      args.w = weights.data() + call % copies * w_bytes;
      function(args);
    });
  }
  nb::dict result;
  result["seconds"] = best;
  result["gb_per_s"] = static_cast<double>(w_bytes) / best * 1e-9;
  result["gops"] = 2.0 * static_cast<double>(rows * k * columns) / best * 1e-9;
  result["weight_bytes"] = w_bytes;
  return result;
}

// GB/s of one core reading a buffer in address order.
double time_memory_read(double seconds, bool huge_pages, int64_t size_bytes) {
  const Pages pages(size_bytes, huge_pages);
  pages.fill();
  nb::gil_scoped_release release;
  const auto read = best_kernels().probe_read;
  volatile uint64_t sink = 0;
  constexpr size_t kPart = 16 << 20;
  const size_t parts = std::max<size_t>(1, pages.size_bytes() / kPart);
  const double best = best_seconds(seconds, 1, [&](int call) {
    sink = sink + read(pages.data() + static_cast<size_t>(call) % parts * kPart,
                       static_cast<int64_t>(std::min(kPart, pages.size_bytes())));
  });
  return static_cast<double>(std::min(kPart, pages.size_bytes())) / best * 1e-9;
}

// Billions of int8 operations (a multiply-add is two) per second of one core; 0 where the kernels have no such probe.
double time_int8(double seconds) {
  const KernelTable& kernels = best_kernels();
  if (kernels.probe_int8 == nullptr) return 0.0;
  nb::gil_scoped_release release;
  volatile uint64_t sink = 0;
  constexpr int64_t kRounds = 20000;
  const double best = best_seconds(seconds, 1, [&](int) { sink = sink + kernels.probe_int8(kRounds); });
  return static_cast<double>(kRounds * kernels.probe_int8_ops) / best * 1e-9;
}

}  // namespace

void bind_testing_kernel_timing(nb::module_& m) {
  m.def("time_matmul", &time_matmul, "isa"_a, "type_name"_a, "rows"_a, "k"_a, "columns"_a, "seconds"_a,
        "huge_pages"_a = true, "min_buffer_bytes"_a = int64_t{0},
        "Best time of one call on one core: dict of seconds, gb_per_s (weight bytes), gops, weight_bytes. "
        "min_buffer_bytes: that much weight memory is walked through in turn.");
  bind_testing_sequence_timing(m);
  m.def("time_memory_read", &time_memory_read, "seconds"_a, "huge_pages"_a = true, "size_bytes"_a = int64_t{1} << 28,
        "GB/s of one core reading in address order.");
  m.def("time_int8", &time_int8, "seconds"_a, "GOPS of one core's int8 products in registers; 0 without a probe.");
}

}  // namespace expertree
