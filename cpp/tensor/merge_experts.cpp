#include "cpp/tensor/merge_experts.h"

#include <algorithm>
#include <vector>

#include "cpp/tensor/dequantize.h"
#include "cpp/tensor/quantize.h"

namespace expertree {
namespace {

constexpr int64_t kRowsPerTask = 16;

// Row `o` of expert `e`. w: float [n_in], the base's row; merged: float [n_in].
void merge_row(const LowRankExperts& x, int64_t e, int64_t o, const float* w, float* __restrict merged) {
  std::copy(w, w + x.n_in, merged);
  for (int64_t j = 0; j < x.rank; ++j) {
    const float b = x.b[(e * x.rank + j) * x.n_out + o];
    const float* __restrict a = x.a + (e * x.rank + j) * x.n_in;
    for (int64_t i = 0; i < x.n_in; ++i) merged[i] += b * a[i];  // two roundings: contraction is off
  }
}

}  // namespace

void merge_experts(const LowRankExperts& x, DType out_dtype, ThreadPool& pool, std::byte* out) {
  const int64_t base_row_bytes = row_bytes(x.base_dtype, x.n_in);
  const int64_t out_row_bytes = row_bytes(out_dtype, x.n_in);
  pool.parallel_for((x.n_out + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    std::vector<float> w(static_cast<size_t>(x.n_in));
    std::vector<float> merged(static_cast<size_t>(x.n_in));
    const int64_t end = std::min((task + 1) * kRowsPerTask, x.n_out);
    for (int64_t o = task * kRowsPerTask; o < end; ++o) {
      dequantize_row(x.base_dtype, x.base + o * base_row_bytes, x.n_in, w.data());
      for (int64_t e = 0; e < x.n_experts; ++e) {
        merge_row(x, e, o, w.data(), merged.data());
        quantize_row(out_dtype, merged.data(), x.n_in, out + (e * x.n_out + o) * out_row_bytes);
      }
    }
  });
}

}  // namespace expertree
