// Rows of float activations with the int8 forms that quantised weights need, made when first asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/kernels/kernel_table.h"

namespace expertree {

class Activations {
 public:
  // Sets the shape and forgets earlier contents; memory is kept and grows as needed.
  void reset(int64_t rows, int64_t n);

  int64_t rows() const { return rows_; }
  int64_t n() const { return n_; }
  float* row(int64_t r) { return f32_.data() + r * n_; }
  const float* row(int64_t r) const { return f32_.data() + r * n_; }
  float* data() { return f32_.data(); }
  const float* data() const { return f32_.data(); }

 private:
  friend class CpuBackend;
  struct Quantized {
    bool valid = false;
    std::vector<int8_t> q;
    std::vector<float> d;
    std::vector<int16_t> sums16;
    QuantizedRows rows{};
  };

  int64_t rows_ = 0;
  int64_t n_ = 0;
  std::vector<float> f32_;
  Quantized q8_32_;
  Quantized q8_256_;
};

}  // namespace expertree
