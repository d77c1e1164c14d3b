// The CPU as a device: whole operations on rows, split over a thread pool. The split never changes a result: every
// output is computed by one thread with the canonical arithmetic (cpp/kernels/canonical.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/backend/activations.h"
#include "cpp/base/thread_pool.h"
#include "cpp/kernels/kernel_table.h"
#include "cpp/tensor/weight.h"

namespace expertree {

// What a product's activations are rounded to.
enum class ActivationMode : uint8_t {
  kInt8,      // int8 per block for quantised weights, float for float weights: the contract
  kReference  // float for everything: for tests
};

class CpuBackend {
 public:
  CpuBackend(const KernelTable& kernels, int n_threads, ActivationMode mode)
      : kernels_(kernels), pool_(n_threads), mode_(mode) {}

  const KernelTable& kernels() const { return kernels_; }
  ActivationMode mode() const { return mode_; }
  ThreadPool& pool() { return pool_; }
  // function(r) for each of n rows that read or write n_values numbers each: by this thread alone where that takes less
  // than handing rows out to others.
  template <typename Function>
  void for_rows(int64_t n, int64_t n_values, const Function& function) {
    constexpr int64_t kSmall = 4096;  // about a microsecond
    if (n * n_values > kSmall) return pool_.parallel_for(n, function);
    for (int64_t r = 0; r < n; ++r) function(r);
  }
  int n_threads() const { return pool_.n_threads(); }

  // y[yr][0 .. w.rows) = w . x[xr], plus bias. Without row lists: for every row of x, into the same row of y. With them:
  // for n_rows pairs xr = x_rows[i], yr = y_rows[i] (the rows that chose one expert).
  struct Product {
    WeightMatrix w;
    float* y;
    int64_t y_stride;
    const float* bias = nullptr;  // [w.rows]
    const int32_t* x_rows = nullptr;
    const int32_t* y_rows = nullptr;
    int64_t n_rows = 0;
  };
  // All products run side by side; they share x.
  void matmul(Activations& x, std::span<const Product> products);

  // y[r] = rms_norm(x[r]) * w for every row of y; x is [y.rows()][y.n()], w is [y.n()].
  void rms_norm(const float* x, const float* w, float eps, Activations* y);

 private:
  void prepare(Activations& x, DType dtype);
  void run(const Activations& x, const Product& product, int64_t row_begin, int64_t row_end) const;

  const KernelTable& kernels_;
  ThreadPool pool_;
  ActivationMode mode_;
};

}  // namespace expertree
