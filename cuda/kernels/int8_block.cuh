// Rounding of one block of floats to int8 (canonical.h, C3).
#pragma once

#include "cuda/gpu/gpu.h"

namespace expertree::cuda {

struct Int8Block {
  static constexpr int kInfinityBits = 0x7f800000;

  float inverse;
  float d;
  bool zero;

  // max_bits: those of the largest magnitude, which order as integers, with infinities and NaN above all numbers.
  __device__ explicit Int8Block(int max_bits) {
    const float amax = __int_as_float(max_bits);
    const bool finite = max_bits < kInfinityBits;
    inverse = __fdiv_rn(127.0f, amax);
    zero = !finite || __float_as_int(inverse) >= kInfinityBits;
    d = !finite ? __int_as_float(0x7fc00000) : zero ? 0.0f : __fdiv_rn(amax, 127.0f);
  }
  __device__ int round(float x) const { return zero ? 0 : min(127, max(-127, __float2int_rn(__fmul_rn(x, inverse)))); }
};

}  // namespace expertree::cuda
