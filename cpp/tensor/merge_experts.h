// Experts made from one weight matrix and a low-rank delta for each: how the default model is built from a dense one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/base/thread_pool.h"
#include "cpp/tensor/dtype.h"

namespace expertree {

struct LowRankExperts {
  DType base_dtype;
  const std::byte* base;  // [n_out] rows of n_in elements in base_dtype
  int64_t n_in;
  int64_t n_out;
  int64_t n_experts;
  int64_t rank;
  const float* a;  // [n_experts][rank][n_in]
  const float* b;  // [n_experts][rank][n_out]
};

// Expert e is W[o][i], to which b[e][j][o] * a[e][j][i] is added for j = 0, 1, ..., rank - 1 in this order; every product
// and every sum is rounded to float, so the result has the same bits on any machine and with any number of threads.
// Then each row is written by quantize_row (quantize.h), which throws kInvalidRequest on NaN and infinity.
// out: [n_experts][n_out] rows of n_in elements in out_dtype; n_in: a multiple of both block sizes.
void merge_experts(const LowRankExperts& experts, DType out_dtype, ThreadPool& pool, std::byte* out);

}  // namespace expertree
