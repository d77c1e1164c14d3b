// Products of the 32-element formats with int8 activations (canonical.h, C4).
#include <cmath>
#include <cstring>

#include "cpp/kernels/scalar/kernels.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

namespace expertree::scalar {
namespace {

// A weight block as integers and its scales.
struct Decoded32 {
  int32_t w[32];
  float d;
  float m;  // only for formats with a minimum
};

template <typename Block>
void decode_nibbles(const Block& block, int32_t offset, Decoded32* out) {
  for (int i = 0; i < 16; ++i) {
    out->w[i] = (block.qs[i] & 15) - offset;
    out->w[16 + i] = (block.qs[i] >> 4) - offset;
  }
}

template <typename Block>
void decode_five_bits(const Block& block, int32_t offset, Decoded32* out) {
  uint32_t high;
  std::memcpy(&high, block.qh, 4);
  for (int i = 0; i < 16; ++i) {
    out->w[i] = static_cast<int32_t>((block.qs[i] & 15u) | ((high >> i & 1u) << 4)) - offset;
    out->w[16 + i] = static_cast<int32_t>((block.qs[i] >> 4) | ((high >> (16 + i) & 1u) << 4)) - offset;
  }
}

template <typename Block>
void decode_table(const Block& block, const int8_t* table, Decoded32* out) {
  for (int i = 0; i < 16; ++i) {
    out->w[i] = table[block.qs[i] & 15];
    out->w[16 + i] = table[block.qs[i] >> 4];
  }
}

void decode(const BlockQ4_0& block, Decoded32* out) {
  decode_nibbles(block, 8, out);
  out->d = half_to_float(block.d);
}
void decode(const BlockQ4_1& block, Decoded32* out) {
  decode_nibbles(block, 0, out);
  out->d = half_to_float(block.d);
  out->m = half_to_float(block.m);
}
void decode(const BlockQ5_0& block, Decoded32* out) {
  decode_five_bits(block, 16, out);
  out->d = half_to_float(block.d);
}
void decode(const BlockQ5_1& block, Decoded32* out) {
  decode_five_bits(block, 0, out);
  out->d = half_to_float(block.d);
  out->m = half_to_float(block.m);
}
void decode(const BlockQ8_0& block, Decoded32* out) {
  for (int i = 0; i < 32; ++i) out->w[i] = block.qs[i];
  out->d = half_to_float(block.d);
}
void decode(const BlockIQ4_NL& block, Decoded32* out) {
  decode_table(block, kIQ4Values, out);
  out->d = half_to_float(block.d);
}
void decode(const BlockMXFP4& block, Decoded32* out) {
  decode_table(block, kMXFP4Values, out);
  out->d = e8m0_to_float_half(block.e);
}

template <typename Block, bool kHasMin>
void matmul(const MatmulArgs& args) {
  const QuantizedRows& x = *args.x_q;
  for (int64_t c = 0; c < args.n_columns; ++c) {
    const int64_t x_row = args.x_rows ? args.x_rows[c] : c;
    const int64_t y_row = args.y_rows ? args.y_rows[c] : c;
    const int8_t* q = x.q + x_row * x.q_stride;
    const float* dx = x.d + x_row * x.d_stride;
    const int16_t* sums = x.sums16 + x_row * x.sums_stride;
    for (int64_t r = args.row_begin; r < args.row_end; ++r) {
      float acc = 0.0f;
      for (int64_t b = 0; b < args.k / 32; ++b) {
        Block block;
        std::memcpy(&block, args.w + r * args.w_row_bytes + b * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
        Decoded32 w;
        decode(block, &w);
        int32_t dot = 0;
        for (int i = 0; i < 32; ++i) dot += w.w[i] * q[b * 32 + i];
        acc = std::fma(static_cast<float>(dot), w.d * dx[b], acc);
        if (kHasMin) {
          const int32_t sum = sums[2 * b] + sums[2 * b + 1];
          acc = std::fma(static_cast<float>(sum), w.m * dx[b], acc);
        }
      }
      args.y[y_row * args.y_stride + r] = acc;
    }
  }
}

// Four float scales in a block of 64: a step of the chain for each 16 elements.
void matmul_four_scales(const MatmulArgs& args) {
  const QuantizedRows& x = *args.x_q;
  for (int64_t c = 0; c < args.n_columns; ++c) {
    const int64_t x_row = args.x_rows ? args.x_rows[c] : c;
    const int64_t y_row = args.y_rows ? args.y_rows[c] : c;
    const int8_t* q = x.q + x_row * x.q_stride;
    const float* dx = x.d + x_row * x.d_stride;
    for (int64_t r = args.row_begin; r < args.row_end; ++r) {
      float acc = 0.0f;
      for (int64_t g = 0; g < args.k / 16; ++g) {
        BlockNVFP4 block;
        std::memcpy(&block, args.w + r * args.w_row_bytes + g / 4 * static_cast<int64_t>(sizeof(block)), sizeof(block));
        int32_t dot = 0;
        for (int i = 0; i < 8; ++i) {
          const uint8_t byte = block.qs[g % 4 * 8 + i];
          dot += kMXFP4Values[byte & 15] * q[g * 16 + i] + kMXFP4Values[byte >> 4] * q[g * 16 + 8 + i];
        }
        acc = std::fma(static_cast<float>(dot), ue4m3_to_float_half(block.d[g % 4]) * dx[g / 2], acc);
      }
      args.y[y_row * args.y_stride + r] = acc;
    }
  }
}

}  // namespace

void matmul_q4_0(const MatmulArgs& args) { matmul<BlockQ4_0, false>(args); }
void matmul_q4_1(const MatmulArgs& args) { matmul<BlockQ4_1, true>(args); }
void matmul_q5_0(const MatmulArgs& args) { matmul<BlockQ5_0, false>(args); }
void matmul_q5_1(const MatmulArgs& args) { matmul<BlockQ5_1, true>(args); }
void matmul_q8_0(const MatmulArgs& args) { matmul<BlockQ8_0, false>(args); }
void matmul_iq4_nl(const MatmulArgs& args) { matmul<BlockIQ4_NL, false>(args); }
void matmul_mxfp4(const MatmulArgs& args) { matmul<BlockMXFP4, false>(args); }
void matmul_nvfp4(const MatmulArgs& args) { matmul_four_scales(args); }

}  // namespace expertree::scalar
