// `expertree._core._testing`: every kernel of every instruction set, for tests and tools/bench_kernels.py.
//
// Inputs are copied so that they end right before a page without access, and outputs lie between guard values: a kernel
// that reads past its input faults, one that writes outside its rows and columns raises.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/kernels/kernel_names.h"
#include "cpp/kernels/kernel_table.h"
#include "cpp/tensor/dtype.h"
#include "python/src/bind_testing_kernels.h"
#include "python/src/guarded_array.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {

const KernelTable& testing_kernels(const std::string& isa) {
  const KernelTable* table = find_kernels(isa.c_str());
  if (table == nullptr) throw Error(ErrorCode::kUnsupported, "no kernels named " + isa + " run here");
  return *table;
}

const DTypeInfo& testing_dtype(const std::string& name) {
  for (int32_t type = 0; type < 64; ++type) {
    const DTypeInfo* info = find_dtype(type);
    if (info != nullptr && name == info->name) return *info;
  }
  throw Error(ErrorCode::kUnsupported, "no element format named " + name);
}

namespace {

// Activations quantised by the kernels of one instruction set, laid out as the engine lays them out.
struct GuardedRows {
  GuardedRows(const KernelTable& kernels, int64_t block, const float* x, int64_t n_rows, int64_t n)
      : q_stride((n + 63) / 64 * 64),
        q(n_rows * q_stride),
        d(n_rows * (n / block)),
        sums16(n_rows * (n / 16)),
        rows{q.data(), d.data(), sums16.data(), n, q_stride, n / block, n / 16} {
    ET_CHECK(block == 32 || block == 256);
    if (n % block != 0) throw Error(ErrorCode::kInvalidRequest, "row length must be a multiple of the block size");
    // The padding of q is not promised to be zero.
    std::memset(static_cast<void*>(q.data()), 0x55, static_cast<size_t>(n_rows * q_stride));
    const auto quantize = block == 32 ? kernels.quantize_q8_32 : kernels.quantize_q8_256;
    for (int64_t r = 0; r < n_rows; ++r) {
      GuardedArray<float> row(x + r * n, n);
      quantize(row.data(), n, rows.q + r * q_stride, rows.d + r * rows.d_stride, rows.sums16 + r * rows.sums_stride);
    }
  }

  int64_t q_stride;
  GuardedArray<int8_t> q;
  GuardedArray<float> d;
  GuardedArray<int16_t> sums16;
  QuantizedRows rows;
};

std::vector<std::string> isa_names() {
  std::vector<std::string> names = kernel_names();
  std::ranges::reverse(names);
  return names;
}

// How many kernels two tables share: 0 unless one stands in for another.
int shared_kernels(const std::string& isa_a, const std::string& isa_b) {
  const KernelTable& a = testing_kernels(isa_a);
  const KernelTable& b = testing_kernels(isa_b);
  constexpr size_t kCount = sizeof(KernelTable) / sizeof(void*);
  static_assert(sizeof(KernelTable) == kCount * sizeof(void*));
  void* entries[2][kCount];
  std::memcpy(entries[0], &a, sizeof a);
  std::memcpy(entries[1], &b, sizeof b);
  int shared = 0;
  for (size_t i = 1; i < kCount; ++i) shared += entries[0][i] == entries[1][i];
  return shared;
}

void check_indices(const Indices& indices, int64_t limit) {
  for (size_t i = 0; indices && i < indices->shape(0); ++i) {
    const int32_t index = indices->data()[i];
    if (index < 0 || index >= limit) throw Error(ErrorCode::kInvalidRequest, "row index out of range");
  }
}

Out<float> matmul(const std::string& isa, const std::string& type_name, In2<uint8_t> w, In2<float> x, bool reference,
                  int64_t row_begin, int64_t row_end, Indices x_rows, Indices y_rows, int64_t misalign) {
  const KernelTable& kernels = testing_kernels(isa);
  const DTypeInfo& info = testing_dtype(type_name);
  const int64_t rows = static_cast<int64_t>(w.shape(0));
  const int64_t n = static_cast<int64_t>(x.shape(0));
  const int64_t k = static_cast<int64_t>(x.shape(1));
  const int64_t n_columns = x_rows ? static_cast<int64_t>(x_rows->shape(0)) : n;
  if (static_cast<int64_t>(w.shape(1)) != row_bytes(info.dtype, k)) {
    throw Error(ErrorCode::kInvalidRequest, "w and x disagree about the row length");
  }
  if (y_rows && static_cast<int64_t>(y_rows->shape(0)) != n_columns) {
    throw Error(ErrorCode::kInvalidRequest, "one y_rows entry per column is needed");
  }
  check_indices(x_rows, n);
  check_indices(y_rows, 1 << 20);
  int64_t n_y = n_columns;
  if (y_rows) {
    n_y = 0;
    for (int64_t c = 0; c < n_columns; ++c) n_y = std::max<int64_t>(n_y, y_rows->data()[c] + 1);
  }

  GuardedArray<uint8_t> weights(w.data(), rows * static_cast<int64_t>(w.shape(1)), misalign);
  GuardedArray<float> x_f32(x.data(), n * k);
  const bool floats = reference || info.activation == ActivationFormat::kF32;
  const int64_t block = info.activation == ActivationFormat::kQ8_256 ? 256 : 32;
  std::unique_ptr<GuardedRows> x_q;
  if (!floats) x_q = std::make_unique<GuardedRows>(kernels, block, x.data(), n, k);
  GuardedOutput y(n_y, rows);
  const MatmulArgs args = {
      .w = reinterpret_cast<const std::byte*>(weights.data()),
      .w_row_bytes = static_cast<int64_t>(w.shape(1)),
      .k = k,
      .row_begin = row_begin,
      .row_end = row_end < 0 ? rows : row_end,
      .x_f32 = floats ? x_f32.data() : nullptr,
      .x_stride = k,
      .x_q = floats ? nullptr : &x_q->rows,
      .x_rows = x_rows ? x_rows->data() : nullptr,
      .n_columns = n_columns,
      .y = y.data(),
      .y_stride = y.stride(),
      .y_rows = y_rows ? y_rows->data() : nullptr,
  };
  if (reference) {
    matmul_reference(info.dtype, args);
  } else {
    matmul_of(kernels, info.dtype)(args);
  }
  return y.take();
}

std::tuple<Out<int8_t>, Out<float>, Out<int16_t>> quantize_rows(const std::string& isa, int64_t block, In2<float> x) {
  const size_t n_rows = x.shape(0);
  const size_t n = x.shape(1);
  const GuardedRows quantized(testing_kernels(isa), block, x.data(), static_cast<int64_t>(n_rows),
                              static_cast<int64_t>(n));
  std::vector<int8_t> q;
  for (size_t r = 0; r < n_rows; ++r) {
    const int8_t* row = quantized.rows.q + static_cast<int64_t>(r) * quantized.q_stride;
    q.insert(q.end(), row, row + n);
    for (int64_t i = static_cast<int64_t>(n); i < quantized.q_stride; ++i) {
      if (row[i] != 0x55) throw Error(ErrorCode::kInternal, "the quantiser wrote past its row");
    }
  }
  return {to_numpy(q.data(), {n_rows, n}), to_numpy(quantized.rows.d, {n_rows, n / static_cast<size_t>(block)}),
          to_numpy(quantized.rows.sums16, {n_rows, n / 16})};
}

Out<float> rms_norm(const std::string& isa, In1<float> x, std::optional<In1<float>> w, float eps, bool in_place) {
  const int64_t n = static_cast<int64_t>(x.shape(0));
  GuardedArray<float> input(x.data(), n);
  GuardedArray<float> weight(w ? w->data() : nullptr, w ? static_cast<int64_t>(w->shape(0)) : 0);
  if (w && w->shape(0) != x.shape(0)) throw Error(ErrorCode::kInvalidRequest, "w and x differ in length");
  GuardedArray<float> output(n);
  float* y = in_place ? input.data() : output.data();
  testing_kernels(isa).rms_norm(input.data(), w ? weight.data() : nullptr, eps, n, y);
  return to_numpy(y, {x.shape(0)});
}

Out<float> softmax(const std::string& isa, In1<float> x, bool in_place) {
  const int64_t n = static_cast<int64_t>(x.shape(0));
  GuardedArray<float> input(x.data(), n);
  GuardedArray<float> output(n);
  float* p = in_place ? input.data() : output.data();
  testing_kernels(isa).softmax(input.data(), n, p);
  return to_numpy(p, {x.shape(0)});
}

GatedUnitFn gated_unit(const KernelTable& table, const std::string& unit) {
  if (unit == "silu_mul") return table.silu_mul;
  if (unit == "gelu_mul") return table.gelu_mul;
  if (unit == "swiglu_oai") return table.swiglu_oai;
  if (unit == "relu_mul") return table.relu_mul;
  throw Error(ErrorCode::kInvalidRequest, "there is no gated unit " + unit);
}

// in_place: "" writes elsewhere, "gate" or "up" over that input.
Out<float> gated(const std::string& isa, const std::string& unit, In1<float> gate, In1<float> up,
                 const std::string& in_place) {
  const int64_t n = static_cast<int64_t>(gate.shape(0));
  if (up.shape(0) != gate.shape(0)) throw Error(ErrorCode::kInvalidRequest, "gate and up differ in length");
  GuardedArray<float> gate_copy(gate.data(), n);
  GuardedArray<float> up_copy(up.data(), n);
  GuardedArray<float> output(n);
  float* y = in_place == "gate" ? gate_copy.data() : in_place == "up" ? up_copy.data() : output.data();
  gated_unit(testing_kernels(isa), unit)(gate_copy.data(), up_copy.data(), n, y);
  return to_numpy(y, {gate.shape(0)});
}

Out<float> axpy(const std::string& isa, float scale, In1<float> x, In1<float> acc) {
  const int64_t n = static_cast<int64_t>(x.shape(0));
  if (acc.shape(0) != x.shape(0)) throw Error(ErrorCode::kInvalidRequest, "x and acc differ in length");
  GuardedArray<float> input(x.data(), n);
  GuardedArray<float> output(acc.data(), n);
  testing_kernels(isa).axpy(scale, input.data(), n, output.data());
  return to_numpy(output.data(), {x.shape(0)});
}

Out<float> map_elements(void (*f)(const float*, int64_t, float*), In1<float> x) {
  const int64_t n = static_cast<int64_t>(x.shape(0));
  GuardedArray<float> input(x.data(), n);
  GuardedArray<float> output(n);
  f(input.data(), n, output.data());
  return to_numpy(output.data(), {x.shape(0)});
}

}  // namespace

void bind_testing_kernels(nb::module_& m) {
  m.attr("UNTOUCHED_BITS") = kUntouchedBits;
  m.def("isa_names", &isa_names, "Instruction sets whose kernels run here.");
  m.def("best_isa", [] { return std::string(best_kernels().name); }, "The instruction set the engine picks here.");
  m.def("shared_kernels", &shared_kernels, "isa_a"_a, "isa_b"_a, "How many kernels two instruction sets share.");
  m.def(
      "matmul", &matmul, "isa"_a, "type_name"_a, "w"_a, "x"_a, nb::kw_only(), "reference"_a = false, "row_begin"_a = 0,
      "row_end"_a = -1, "x_rows"_a = nb::none(), "y_rows"_a = nb::none(), "misalign"_a = 0,
      "w: uint8 [rows, row_bytes]; x: float32 [n, k], quantised by that isa where the format needs it; x_rows, y_rows: "
      "int32 [columns]. Returns float32 [columns or max(y_rows) + 1, rows]; what the kernel left alone holds "
      "UNTOUCHED_BITS. reference: decoded weights with float activations. misalign: bytes between the end of w and "
      "a page without access.");
  m.def("quantize_rows", &quantize_rows, "isa"_a, "block"_a, "x"_a,
        "x: float32 [n, k] -> (q int8 [n, k], d float32 [n, k / block], sums16 int16 [n, k / 16]); block 32 or 256.");
  m.def("rms_norm", &rms_norm, "isa"_a, "x"_a, "w"_a.none(), "eps"_a, "in_place"_a = false);
  m.def("softmax", &softmax, "isa"_a, "x"_a, "in_place"_a = false);
  m.def("gated_unit", &gated, "isa"_a, "unit"_a, "gate"_a, "up"_a, "in_place"_a = "",
        "unit: silu_mul, gelu_mul, swiglu_oai or relu_mul; in_place: '', 'gate' or 'up'.");
  m.def("axpy", &axpy, "isa"_a, "scale"_a, "x"_a, "acc"_a, "Returns fma(scale, x, acc).");
  m.def(
      "exp", [](const std::string& isa, In1<float> x) { return map_elements(testing_kernels(isa).exp_f32, x); },
      "isa"_a, "x"_a);
  m.def(
      "log", [](const std::string& isa, In1<float> x) { return map_elements(testing_kernels(isa).log_f32, x); },
      "isa"_a, "x"_a);
  bind_testing_attention(m);
  bind_testing_kernel_timing(m);
}

}  // namespace expertree
