// merge_experts for Python: encoded rows in, encoded rows out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/base/thread_pool.h"
#include "cpp/tensor/dequantize.h"
#include "cpp/tensor/dtype.h"
#include "cpp/tensor/merge_experts.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

using Rows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RankRows = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using ExpertRows = nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>;

constexpr int kMaxThreads = 1024;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kInvalidRequest, message); }

const DTypeInfo& dtype_named(const std::string& name) {
  for (int32_t number = 0; number < 64; ++number) {
    const DTypeInfo* info = find_dtype(number);
    if (info != nullptr && name == info->name) return *info;
  }
  refuse("no supported element format is named '" + name + "'");
}

// Elements of a row of n_bytes.
int64_t row_elements(const DTypeInfo& info, size_t n_bytes, const char* what) {
  const int64_t n = static_cast<int64_t>(n_bytes);
  if (n == 0 || n % info.block_bytes != 0) {
    refuse(std::string(what) + ": rows of " + std::to_string(n) + " bytes are not whole " + info.name + " blocks of " +
           std::to_string(info.block_bytes) + " bytes");
  }
  return n / info.block_bytes * info.block_size;
}

std::vector<float> decode(const DTypeInfo& info, const RankRows& raw, int64_t n) {
  const size_t n_rows = raw.shape(0) * raw.shape(1);
  std::vector<float> values(n_rows * static_cast<size_t>(n));
  for (size_t row = 0; row < n_rows; ++row) {
    dequantize_row(info.dtype, reinterpret_cast<const std::byte*>(raw.data() + row * raw.shape(2)), n,
                   values.data() + row * static_cast<size_t>(n));
  }
  return values;
}

ExpertRows merge(const std::string& base_type, const Rows& base, const std::string& delta_type, const RankRows& a,
                 const RankRows& b, const std::string& out_type, int n_threads) {
  const DTypeInfo& base_info = dtype_named(base_type);
  const DTypeInfo& delta_info = dtype_named(delta_type);
  const DTypeInfo& out_info = dtype_named(out_type);
  LowRankExperts experts{};
  experts.base_dtype = base_info.dtype;
  experts.base = reinterpret_cast<const std::byte*>(base.data());
  experts.n_in = row_elements(base_info, base.shape(1), "base");
  experts.n_out = static_cast<int64_t>(base.shape(0));
  experts.n_experts = static_cast<int64_t>(a.shape(0));
  experts.rank = static_cast<int64_t>(a.shape(1));
  if (row_elements(delta_info, a.shape(2), "a") != experts.n_in) refuse("a: its rows are not as long as base's");
  if (row_elements(delta_info, b.shape(2), "b") != experts.n_out)
    refuse("b: its rows are not as long as base's columns");
  if (b.shape(0) != a.shape(0) || b.shape(1) != a.shape(1)) refuse("a and b differ in experts or rank");
  if (experts.n_in % out_info.block_size != 0) {
    refuse(std::to_string(experts.n_in) + " columns are not whole " + out_info.name + " blocks");
  }
  if (n_threads < 1 || n_threads > kMaxThreads) refuse("n_threads: expected 1 to " + std::to_string(kMaxThreads));

  const size_t out_row_bytes = static_cast<size_t>(row_bytes(out_info.dtype, experts.n_in));
  std::unique_ptr<uint8_t[]> out(new uint8_t[a.shape(0) * base.shape(0) * out_row_bytes]);
  {
    nb::gil_scoped_release release;
    const std::vector<float> a_values = decode(delta_info, a, experts.n_in);
    const std::vector<float> b_values = decode(delta_info, b, experts.n_out);
    experts.a = a_values.data();
    experts.b = b_values.data();
    ThreadPool pool(n_threads);
    merge_experts(experts, out_info.dtype, pool, reinterpret_cast<std::byte*>(out.get()));
  }
  uint8_t* data = out.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  out.release();
  return ExpertRows(data, {a.shape(0), base.shape(0), out_row_bytes}, owner);
}

} // namespace

void bind_merge_experts(nb::module_& m) {
  m.def("merge_experts", &merge, "base_type"_a, "base"_a, "delta_type"_a, "a"_a, "b"_a, "out_type"_a, "n_threads"_a,
        "Experts W + sum over j of b[j] a[j]^T, float32, in the order of j "
        "(cpp/tensor/merge_experts.h).\n\n"
        "base: uint8 [n_out, row bytes]; a: uint8 [n_experts, rank, row bytes "
        "of n_in]; b: the same of n_out; all in "
        "the named formats. Returns uint8 [n_experts, n_out, row bytes]. "
        "Raises InvalidRequestError when the shapes do "
        "not fit or a value is not finite.");
}

} // namespace expertree
