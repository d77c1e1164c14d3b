// Reference decoding of every supported element format: plain scalar code, the oracle of all kernels, never optimised.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/tensor/dtype.h"

namespace expertree {

// src: row_bytes(dtype, n) bytes at any alignment; dst: n floats; n: a multiple of the block size.
// Equal to ggml's to_float bit by bit: for every block format the products fit in 24 bits, so at most the final
// subtraction rounds, and neither the order of operations nor contraction matters.
void dequantize_row(DType dtype, const std::byte* src, int64_t n, float* dst);

}  // namespace expertree
