// Reference encoders of the code-book and ternary formats and NVFP4 (quantize.h has the contract).
#pragma once

#include <algorithm>

#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

namespace expertree {

// The nearest that is finite.
inline Half to_half_saturated(double v) { return float_to_half(static_cast<float>(std::clamp(v, -65504.0, 65504.0))); }

// x: float [256], finite; *b is all zero before the call. NVFP4: float [64].
void encode_block(const float* x, BlockIQ1_S* b);
void encode_block(const float* x, BlockIQ1_M* b);
void encode_block(const float* x, BlockIQ2_XXS* b);
void encode_block(const float* x, BlockIQ2_XS* b);
void encode_block(const float* x, BlockIQ2_S* b);
void encode_block(const float* x, BlockIQ3_XXS* b);
void encode_block(const float* x, BlockIQ3_S* b);
void encode_block(const float* x, BlockTQ1_0* b);
void encode_block(const float* x, BlockTQ2_0* b);
void encode_block(const float* x, BlockNVFP4* b);

}  // namespace expertree
