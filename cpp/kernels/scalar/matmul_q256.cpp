// Products of the 256-element formats with int8 activations (canonical.h, C4).
#include <cmath>
#include <cstring>

#include "cpp/kernels/scalar/kernels.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"
#include "cpp/tensor/integer_blocks.h"

namespace expertree::scalar {
namespace {

// A weight block as integers, with integer scales per 16 elements (a sub-block of 32 repeats its scale).
struct Decoded256 {
  int32_t w[256];
  int32_t scale[16];
  int32_t min[16];  // only for formats with minimums
  float d;
  float dmin;
};

void decode(const BlockQ2_K& block, Decoded256* out) {
  for (int i = 0; i < 256; ++i) {
    // 128 elements share 32 bytes; each quarter of 32 elements takes the next two bits.
    out->w[i] = block.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  }
  for (int j = 0; j < 16; ++j) {
    out->scale[j] = block.scales[j] & 15;
    out->min[j] = block.scales[j] >> 4;
  }
  out->d = half_to_float(block.d);
  out->dmin = half_to_float(block.dmin);
}

void decode(const BlockQ3_K& block, Decoded256* out) {
  for (int i = 0; i < 256; ++i) {
    const int low = block.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const int high = block.hmask[i % 32] >> (i / 32) & 1;
    out->w[i] = (low | high << 2) - 4;
  }
  for (int j = 0; j < 16; ++j) {
    // Six bits: the low four in nibbles of bytes 0-7, the high two in bytes 8-11.
    const int low = j < 8 ? block.scales[j] & 15 : block.scales[j - 8] >> 4;
    const int high = block.scales[8 + j % 4] >> (j / 4 * 2) & 3;
    out->scale[j] = (low | high << 4) - 32;
  }
  out->d = half_to_float(block.d);
}

// Scale and minimum j (0-7) of Q4_K and Q5_K: six bits each in twelve bytes.
void unpack_scale_min(const uint8_t* scales, int j, int32_t* scale, int32_t* min) {
  if (j < 4) {
    *scale = scales[j] & 63;
    *min = scales[j + 4] & 63;
  } else {
    *scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
    *min = (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
  }
}

template <typename Block>
void decode_q45(const Block& block, Decoded256* out) {
  for (int i = 0; i < 256; ++i) {
    // 64 elements share 32 bytes: low nibbles first, then high nibbles.
    const uint8_t byte = block.qs[i / 64 * 32 + i % 32];
    out->w[i] = i % 64 < 32 ? byte & 15 : byte >> 4;
  }
  for (int j = 0; j < 16; ++j) unpack_scale_min(block.scales, j / 2, &out->scale[j], &out->min[j]);
  out->d = half_to_float(block.d);
  out->dmin = half_to_float(block.dmin);
}

void decode(const BlockQ4_K& block, Decoded256* out) { decode_q45(block, out); }

void decode(const BlockQ5_K& block, Decoded256* out) {
  decode_q45(block, out);
  for (int i = 0; i < 256; ++i) out->w[i] |= (block.qh[i % 32] >> (i / 32) & 1) << 4;
}

void decode(const BlockQ6_K& block, Decoded256* out) {
  for (int i = 0; i < 256; ++i) {
    // 128 elements share 64 bytes of ql and 32 of qh.
    const int half = i / 128;
    const int quarter = i % 128 / 32;
    const uint8_t byte = block.ql[half * 64 + quarter % 2 * 32 + i % 32];
    const int low = quarter < 2 ? byte & 15 : byte >> 4;
    const int high = block.qh[half * 32 + i % 32] >> (quarter * 2) & 3;
    out->w[i] = (low | high << 4) - 32;
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = block.scales[j];
  out->d = half_to_float(block.d);
}

void decode(const BlockIQ4_XS& block, Decoded256* out) {
  for (int i = 0; i < 256; ++i) {
    const uint8_t byte = block.qs[i / 32 * 16 + i % 16];
    out->w[i] = kIQ4Values[i % 32 < 16 ? byte & 15 : byte >> 4];
  }
  for (int j = 0; j < 16; ++j) {
    const int s = j / 2;
    const int low = block.scales_l[s / 2] >> (s % 2 * 4) & 15;
    const int high = block.scales_h >> (s * 2) & 3;
    out->scale[j] = (low | high << 4) - 32;
  }
  out->d = half_to_float(block.d);
}

// The code books and ternary formats.
template <typename Block>
void decode(const Block& block, Decoded256* out) {
  IntegerBlock integers;
  decode_integers(block, &integers);
  for (int i = 0; i < 256; ++i) out->w[i] = integers.q[i];
  for (int j = 0; j < 16; ++j) out->scale[j] = integers.scale[j];
  out->d = integers.d;
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
      for (int64_t b = 0; b < args.k / 256; ++b) {
        Block block;
        std::memcpy(&block, args.w + r * args.w_row_bytes + b * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
        Decoded256 w;
        decode(block, &w);
        int32_t dot = 0;
        int32_t min_dot = 0;
        for (int j = 0; j < 16; ++j) {
          int32_t sub = 0;
          for (int i = 0; i < 16; ++i) sub += w.w[16 * j + i] * q[b * 256 + 16 * j + i];
          dot += w.scale[j] * sub;
          if (kHasMin) min_dot += w.min[j] * sums[b * 16 + j];
        }
        acc = std::fma(static_cast<float>(dot), w.d * dx[b], acc);
        if (kHasMin) acc = std::fma(-static_cast<float>(min_dot), w.dmin * dx[b], acc);
      }
      args.y[y_row * args.y_stride + r] = acc;
    }
  }
}

}  // namespace

void matmul_q2_k(const MatmulArgs& args) { matmul<BlockQ2_K, true>(args); }
void matmul_q3_k(const MatmulArgs& args) { matmul<BlockQ3_K, false>(args); }
void matmul_q4_k(const MatmulArgs& args) { matmul<BlockQ4_K, true>(args); }
void matmul_q5_k(const MatmulArgs& args) { matmul<BlockQ5_K, true>(args); }
void matmul_q6_k(const MatmulArgs& args) { matmul<BlockQ6_K, false>(args); }
void matmul_iq4_xs(const MatmulArgs& args) { matmul<BlockIQ4_XS, false>(args); }
void matmul_iq1_s(const MatmulArgs& args) { matmul<BlockIQ1_S, false>(args); }
void matmul_iq1_m(const MatmulArgs& args) { matmul<BlockIQ1_M, false>(args); }
void matmul_iq2_xxs(const MatmulArgs& args) { matmul<BlockIQ2_XXS, false>(args); }
void matmul_iq2_xs(const MatmulArgs& args) { matmul<BlockIQ2_XS, false>(args); }
void matmul_iq2_s(const MatmulArgs& args) { matmul<BlockIQ2_S, false>(args); }
void matmul_iq3_xxs(const MatmulArgs& args) { matmul<BlockIQ3_XXS, false>(args); }
void matmul_iq3_s(const MatmulArgs& args) { matmul<BlockIQ3_S, false>(args); }
void matmul_tq1_0(const MatmulArgs& args) { matmul<BlockTQ1_0, false>(args); }
void matmul_tq2_0(const MatmulArgs& args) { matmul<BlockTQ2_0, false>(args); }

}  // namespace expertree::scalar
