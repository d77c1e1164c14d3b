// Attention and the rows of the KV cache, of every instruction set.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "cpp/model/cache_types.h"
#include "python/src/bind_testing_kernels.h"
#include "python/src/guarded_array.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

// Keys or values as a sequence keeps them; written by the plain kernels.
class GuardedCells {
 public:
  GuardedCells(const std::string& type, const In2<float>& x)
      : n_(static_cast<int64_t>(x.shape(1))),
        type_(cache_type(type)),
        bytes_(static_cast<int64_t>(x.shape(0)) * cache_row_bytes(type_, n_)) {
    for (size_t cell = 0; cell < x.shape(0); ++cell) {
      write_cache_row(*scalar_kernels(), x.data() + static_cast<int64_t>(cell) * n_, n_, type_,
                      bytes_.data() + static_cast<int64_t>(cell) * row_bytes());
    }
  }
  CellRows rows() const { return {bytes_.data(), row_bytes(), type_}; }

 private:
  int64_t row_bytes() const { return cache_row_bytes(type_, n_); }

  int64_t n_;
  DType type_;
  GuardedArray<std::byte> bytes_;
};

// One KV head's cells; without v the values are the first dim_v elements of the keys.
struct Cells {
  Cells(const In2<float>& k, const std::optional<In2<float>>& v, int64_t dim_v, const std::string& k_type,
        const std::string& v_type)
      : keys(k_type, k),
        head_dim_k(static_cast<int64_t>(k.shape(1))),
        head_dim_v(v ? static_cast<int64_t>(v->shape(1)) : dim_v),
        scratch(attend_scratch_floats(head_dim_k, head_dim_v)) {
    if (v) values.emplace(v_type, *v);
    if ((v && v->shape(0) != k.shape(0)) || (!v && (dim_v < 1 || dim_v > head_dim_k))) {
      throw Error(ErrorCode::kInvalidRequest, "k, v and dim_v disagree");
    }
  }
  // What the rows of a call have in common.
  AttendArgs args(int64_t n_heads, float scale) const {
    AttendArgs args{};
    args.q_stride = head_dim_k;
    args.n_heads = n_heads;
    args.k = keys.rows();
    args.v = values ? values->rows() : args.k;
    args.scratch = scratch.data();
    args.head_dim_k = head_dim_k;
    args.head_dim_v = head_dim_v;
    args.scale = scale;
    return args;
  }

  GuardedCells keys;
  std::optional<GuardedCells> values;
  int64_t head_dim_k, head_dim_v;
  GuardedArray<float> scratch;
};

Out<float> attend(const std::string& isa, In2<float> q, In2<float> k, std::optional<In2<float>> v, int64_t n_prefix,
                  In1<int32_t> tail, float scale, int64_t first, float softcap, std::optional<In1<float>> sinks,
                  const std::string& k_type, const std::string& v_type, int64_t dim_v) {
  const auto n_heads = static_cast<int64_t>(q.shape(0));
  const auto n_cells = static_cast<int64_t>(k.shape(0));
  const auto n_tail = static_cast<int64_t>(tail.shape(0));
  const bool tail_fits =
      std::all_of(tail.data(), tail.data() + n_tail, [&](int32_t cell) { return cell >= 0 && cell < n_cells; });
  if (k.shape(1) != q.shape(1) || n_prefix < 0 || n_prefix > n_cells || !tail_fits) {
    throw Error(ErrorCode::kInvalidRequest, "q, k, n_prefix and tail disagree");
  }
  if (first < 0 || n_prefix + n_tail <= first) throw Error(ErrorCode::kInvalidRequest, "a query needs a position");
  if (sinks && static_cast<int64_t>(sinks->shape(0)) != n_heads) {
    throw Error(ErrorCode::kInvalidRequest, "sinks are one per head");
  }
  const Cells cells(k, v, dim_v, k_type, v_type);
  const GuardedArray<float> q_copy(q.data(), n_heads * cells.head_dim_k);
  const GuardedArray<int32_t> tail_copy(tail.data(), n_tail);
  GuardedOutput out(n_heads, cells.head_dim_v);
  AttendArgs args = cells.args(n_heads, scale);
  args.q = q_copy.data();
  args.first = first;
  args.n_prefix = n_prefix;
  args.tail = tail_copy.data();
  args.n_tail = n_tail;
  args.softcap = softcap;
  args.sinks = sinks ? sinks->data() : nullptr;
  args.out = out.data();
  args.out_stride = out.stride();
  testing_kernels(isa).attend(&args, 1);
  return out.take();
}

// Several rows in one call; row r sees cells first[r] .. lengths[r] - 1, then those of tails[r].
Out<float> attend_rows(const std::string& isa, nb::ndarray<const float, nb::ndim<3>, nb::c_contig> q, In2<float> k,
                       std::optional<In2<float>> v, In1<int32_t> lengths, In1<int32_t> first, float scale,
                       const std::string& k_type, const std::string& v_type, int64_t dim_v,
                       std::optional<In2<int32_t>> tails) {
  const auto n_rows = static_cast<int64_t>(q.shape(0));
  const auto n_heads = static_cast<int64_t>(q.shape(1));
  if (k.shape(1) != q.shape(2) || lengths.shape(0) != q.shape(0) || first.shape(0) != q.shape(0)) {
    throw Error(ErrorCode::kInvalidRequest, "q, k, lengths and first disagree");
  }
  const auto n_tail = tails ? static_cast<int64_t>(tails->shape(1)) : 0;
  const auto is_cell = [&](int32_t cell) { return cell >= 0 && cell < static_cast<int64_t>(k.shape(0)); };
  if (tails &&
      (tails->shape(0) != q.shape(0) || !std::all_of(tails->data(), tails->data() + n_rows * n_tail, is_cell))) {
    throw Error(ErrorCode::kInvalidRequest, "tails are cells, as many for each row");
  }
  const Cells cells(k, v, dim_v, k_type, v_type);
  const GuardedArray<float> q_copy(q.data(), n_rows * n_heads * cells.head_dim_k);
  GuardedOutput out(n_rows * n_heads, cells.head_dim_v);
  std::vector<AttendArgs> rows(static_cast<size_t>(n_rows), cells.args(n_heads, scale));
  for (int64_t r = 0; r < n_rows; ++r) {
    const int32_t length = lengths.data()[r];
    if (length < 1 || length > static_cast<int64_t>(k.shape(0))) {
      throw Error(ErrorCode::kInvalidRequest, "a length is not between 1 and the number of cells");
    }
    AttendArgs& args = rows[static_cast<size_t>(r)];
    args.q = q_copy.data() + r * n_heads * cells.head_dim_k;
    args.first = std::min(first.data()[r], length - 1);
    args.n_prefix = length;
    args.tail = tails ? tails->data() + r * n_tail : nullptr;
    args.n_tail = n_tail;
    args.out = out.data() + r * n_heads * out.stride();
    args.out_stride = out.stride();
  }
  testing_kernels(isa).attend(rows.data(), n_rows);
  return out.take();
}

Out<uint8_t> write_cache_rows(const std::string& isa, const std::string& type_name, In2<float> x) {
  const DType type = cache_type(type_name);
  const auto n = static_cast<int64_t>(x.shape(1));
  const int64_t row = cache_row_bytes(type, n);
  std::vector<uint8_t> rows;
  for (size_t r = 0; r < x.shape(0); ++r) {
    const GuardedArray<float> input(x.data() + static_cast<int64_t>(r) * n, n);
    const GuardedArray<std::byte> output(row);
    write_cache_row(testing_kernels(isa), input.data(), n, type, output.data());
    const auto* bytes = reinterpret_cast<const uint8_t*>(output.data());
    rows.insert(rows.end(), bytes, bytes + row);
  }
  return to_numpy(rows.data(), {x.shape(0), static_cast<size_t>(row)});
}

}  // namespace

void bind_testing_attention(nb::module_& m) {
  m.def(
      "attend", &attend, "isa"_a, "q"_a, "k"_a, "v"_a.none(), "n_prefix"_a, "tail"_a, "scale"_a, "first"_a = 0,
      "softcap"_a = 0.0f, "sinks"_a = nb::none(), "k_type"_a = "f32", "v_type"_a = "f32", "dim_v"_a = 0,
      "q: float32 [heads, dk]; k: [cells, dk]; v: [cells, dv], or None for the first dim_v elements of k; tail: int32 "
      "cells of the positions from n_prefix on; first: the first position seen; sinks: float32 [heads] or None; "
      "k_type, v_type: what they are rounded to. Returns float32 [heads, dv].");
  m.def(
      "attend_rows", &attend_rows, "isa"_a, "q"_a, "k"_a, "v"_a.none(), "lengths"_a, "first"_a, "scale"_a,
      "k_type"_a = "f32", "v_type"_a = "f32", "dim_v"_a = 0, "tails"_a = nb::none(),
      "q: float32 [rows, heads, dk]; row r sees cells first[r] .. lengths[r] - 1. Returns float32 [rows * heads, dv].");
  m.def("write_cache_rows", &write_cache_rows, "isa"_a, "type"_a, "x"_a,
        "x: float32 [n, dim] -> uint8 [n, row bytes]; type: f32, f16 or q8_0.");
}

}  // namespace expertree
