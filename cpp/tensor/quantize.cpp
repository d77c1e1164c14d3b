#include "cpp/tensor/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cpp/base/error.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"
#include "cpp/tensor/quantize_grid.h"

namespace expertree {
namespace {

// The values that a code can stand for, before scaling: the integers lo..hi, or the entries of a table (code = index).
struct Grid {
  int lo;
  int hi;
  const int8_t* table;

  int n_table() const { return table != nullptr ? 16 : 0; }

  // Value nearest to v. Integers: ties to even; tables: the lower index.
  int nearest(double v) const {
    if (table == nullptr) return static_cast<int>(std::nearbyint(std::clamp<double>(v, lo, hi)));
    return table[nearest_index(v)];
  }
  int nearest_index(double v) const {
    int best = 0;
    for (int i = 1; i < n_table(); ++i) {
      if (std::fabs(v - table[i]) < std::fabs(v - table[best])) best = i;
    }
    return best;
  }
};

constexpr Grid kGridIQ4 = {-127, 113, kIQ4Values};
constexpr Grid kGridMXFP4 = {-12, 12, kMXFP4Values};

double scaled(float x, double scale) { return scale != 0.0 ? x / scale : 0.0; }

// Squared error of x[n] written as scale * grid value. Optionally the sums that give the best scale for those values.
double grid_error(const float* x, int n, const Grid& grid, double scale, double* sum_xg, double* sum_gg) {
  double error = 0.0;
  *sum_xg = 0.0;
  *sum_gg = 0.0;
  for (int i = 0; i < n; ++i) {
    const double g = grid.nearest(scaled(x[i], scale));
    const double difference = x[i] - scale * g;
    error += difference * difference;
    *sum_xg += x[i] * g;
    *sum_gg += g * g;
  }
  return error;
}

double grid_error(const float* x, int n, const Grid& grid, double scale) {
  double sum_xg, sum_gg;
  return grid_error(x, n, grid, scale, &sum_xg, &sum_gg);
}

float largest_magnitude(const float* x, int n) {
  float extreme = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  return extreme;
}

// Scale of small squared error: put the largest element near either end of the grid, a little inside or outside it, let
// least squares improve the scale, keep the best.
double fit_grid_scale(const float* x, int n, const Grid& grid) {
  const double extreme = largest_magnitude(x, n);
  double best_scale = extreme / grid.lo;
  double best_error = grid_error(x, n, grid, best_scale);
  for (int end : {grid.lo, grid.hi}) {
    for (int step = -10; step <= 10; ++step) {
      double scale = extreme / (end * (1.0 + 0.025 * step));
      double sum_xg, sum_gg;
      for (int round = 0; round < 3; ++round) {
        const double error = grid_error(x, n, grid, scale, &sum_xg, &sum_gg);
        if (error < best_error) {
          best_error = error;
          best_scale = scale;
        }
        if (sum_gg == 0.0) break;
        scale = sum_xg / sum_gg;
      }
    }
  }
  return best_scale;
}

// Codes q in 0..hi standing for scale * q + offset.
struct Affine {
  double scale;
  double offset;
};

int affine_code(float x, int hi, Affine a) {
  const double v = a.scale != 0.0 ? (x - a.offset) / a.scale : 0.0;
  return static_cast<int>(std::nearbyint(std::clamp<double>(v, 0, hi)));
}

double affine_error(const float* x, int n, int hi, Affine a) {
  double error = 0.0;
  for (int i = 0; i < n; ++i) {
    const double difference = x[i] - (a.scale * affine_code(x[i], hi, a) + a.offset);
    error += difference * difference;
  }
  return error;
}

// Least squares for the codes that `a` gives; an offset above max_offset is held there.
Affine affine_refine(const float* x, int n, int hi, Affine a, double max_offset) {
  double sum_q = 0.0, sum_qq = 0.0, sum_x = 0.0, sum_xq = 0.0;
  for (int i = 0; i < n; ++i) {
    const double q = affine_code(x[i], hi, a);
    sum_q += q;
    sum_qq += q * q;
    sum_x += x[i];
    sum_xq += x[i] * q;
  }
  const double determinant = n * sum_qq - sum_q * sum_q;
  if (determinant <= 0.0) return a;
  Affine refined = {(n * sum_xq - sum_q * sum_x) / determinant, (sum_qq * sum_x - sum_q * sum_xq) / determinant};
  if (refined.offset > max_offset) refined = {(sum_xq - max_offset * sum_q) / sum_qq, max_offset};
  return refined.scale > 0.0 ? refined : a;
}

Affine fit_affine(const float* x, int n, int hi, double max_offset) {
  const double smallest = std::min<double>(*std::min_element(x, x + n), max_offset);
  const double largest = std::max<double>(*std::max_element(x, x + n), smallest);
  Affine best = {(largest - smallest) / hi, smallest};
  double best_error = affine_error(x, n, hi, best);
  for (int step = -10; step <= 15; ++step) {
    // The grid a little coarser or finer than the range, sharing the overhang or the cut between both ends.
    const double scale = (largest - smallest) / (hi + 0.1 * step);
    Affine a = {scale, std::min(smallest + 0.05 * step * scale, max_offset)};
    for (int round = 0; round < 3; ++round) {
      const double error = affine_error(x, n, hi, a);
      if (error < best_error) {
        best_error = error;
        best = a;
      }
      a = affine_refine(x, n, hi, a, max_offset);
    }
  }
  return best;
}

constexpr double kNoLimit = 1e300;

// A super-block of 256 whose sub-blocks carry integer scales: weight = d * scales[j] * grid value.
struct ScaledGrid {
  Half d;
  int scales[16];
  int codes[256];  // grid values, or indices for a table grid
};

ScaledGrid fit_scaled_grid(const float* x, int sub_block, const Grid& grid, int scale_lo, int scale_hi) {
  ScaledGrid out;
  const int n_sub = 256 / sub_block;
  double fitted[16];
  double extreme = 0.0;
  for (int j = 0; j < n_sub; ++j) {
    fitted[j] = fit_grid_scale(x + j * sub_block, sub_block, grid);
    if (std::fabs(fitted[j]) > std::fabs(extreme)) extreme = fitted[j];
  }
  out.d = to_half_saturated(extreme / scale_lo);
  const double d = half_to_float(out.d);
  for (int j = 0; j < n_sub; ++j) {
    const float* sub = x + j * sub_block;
    const int centre = d != 0.0 ? static_cast<int>(std::nearbyint(std::clamp(fitted[j] / d, -1e6, 1e6))) : 0;
    double best_error = -1.0;
    for (int step = -2; step <= 2; ++step) {
      const int scale = std::clamp(centre + step, scale_lo, scale_hi);
      const double error = grid_error(sub, sub_block, grid, d * scale);
      if (best_error < 0.0 || error < best_error) {
        best_error = error;
        out.scales[j] = scale;
      }
    }
    for (int i = 0; i < sub_block; ++i) {
      const double v = scaled(sub[i], d * out.scales[j]);
      out.codes[j * sub_block + i] = grid.table != nullptr ? grid.nearest_index(v) : grid.nearest(v);
    }
  }
  return out;
}

// A super-block of 256: weight = d * scales[j] * code - dmin * minima[j], scales and minima in 0..scale_hi.
struct ScaledAffine {
  Half d;
  Half dmin;
  int scales[16];
  int minima[16];
  int codes[256];
};

void choose_affine_integers(const float* sub, int sub_block, int hi, int scale_hi, Affine fitted, double d, double dmin,
                            int* scale, int* minimum) {
  const int scale0 = d > 0.0 ? static_cast<int>(std::nearbyint(std::min(fitted.scale / d, 1e6))) : 0;
  const int minimum0 = dmin > 0.0 ? static_cast<int>(std::nearbyint(std::min(-fitted.offset / dmin, 1e6))) : 0;
  double best_error = -1.0;
  for (int step = 0; step < 25; ++step) {
    const int s = std::clamp(scale0 + step / 5 - 2, 0, scale_hi);
    const int m = std::clamp(minimum0 + step % 5 - 2, 0, scale_hi);
    const double error = affine_error(sub, sub_block, hi, {d * s, -dmin * m});
    if (best_error < 0.0 || error < best_error) {
      best_error = error;
      *scale = s;
      *minimum = m;
    }
  }
}

ScaledAffine fit_scaled_affine(const float* x, int sub_block, int hi, int scale_hi) {
  ScaledAffine out;
  const int n_sub = 256 / sub_block;
  Affine fitted[16];
  double largest_scale = 0.0, largest_minimum = 0.0;
  for (int j = 0; j < n_sub; ++j) {
    fitted[j] = fit_affine(x + j * sub_block, sub_block, hi, 0.0);
    largest_scale = std::max(largest_scale, fitted[j].scale);
    largest_minimum = std::max(largest_minimum, -fitted[j].offset);
  }
  out.d = to_half_saturated(largest_scale / scale_hi);
  out.dmin = to_half_saturated(largest_minimum / scale_hi);
  const double d = half_to_float(out.d);
  const double dmin = half_to_float(out.dmin);
  for (int j = 0; j < n_sub; ++j) {
    const float* sub = x + j * sub_block;
    choose_affine_integers(sub, sub_block, hi, scale_hi, fitted[j], d, dmin, &out.scales[j], &out.minima[j]);
    for (int i = 0; i < sub_block; ++i) {
      out.codes[j * sub_block + i] = affine_code(sub[i], hi, {d * out.scales[j], -dmin * out.minima[j]});
    }
  }
  return out;
}

// ---- one function per format: fit, then pack (layouts: blocks.h and dequantize.cpp) ----

void put_nibble32(uint8_t* qs, int i, int code) { qs[i % 16] |= static_cast<uint8_t>((code & 15) << (i / 16 * 4)); }
void put_bit32(uint8_t* field, int i, int bit) { field[i / 8] |= static_cast<uint8_t>((bit & 1) << (i % 8)); }

template <typename Block>
void encode_grid32(const float* x, const Grid& grid, Block* b, double* d) {
  b->d = to_half_saturated(fit_grid_scale(x, 32, grid));
  *d = half_to_float(b->d);
}

void encode(const float* x, BlockQ4_0* b) {
  constexpr Grid grid = {-8, 7, nullptr};
  double d;
  encode_grid32(x, grid, b, &d);
  for (int i = 0; i < 32; ++i) put_nibble32(b->qs, i, grid.nearest(scaled(x[i], d)) + 8);
}

void encode(const float* x, BlockQ5_0* b) {
  constexpr Grid grid = {-16, 15, nullptr};
  double d;
  encode_grid32(x, grid, b, &d);
  for (int i = 0; i < 32; ++i) {
    const int code = grid.nearest(scaled(x[i], d)) + 16;
    put_nibble32(b->qs, i, code);
    put_bit32(b->qh, i, code >> 4);
  }
}

void encode(const float* x, BlockQ8_0* b) {
  constexpr Grid grid = {-127, 127, nullptr};
  b->d = to_half_saturated(std::fabs(static_cast<double>(largest_magnitude(x, 32))) / 127);
  const double d = half_to_float(b->d);
  for (int i = 0; i < 32; ++i) b->qs[i] = static_cast<int8_t>(grid.nearest(scaled(x[i], d)));
}

void encode(const float* x, BlockIQ4_NL* b) {
  double d;
  encode_grid32(x, kGridIQ4, b, &d);
  for (int i = 0; i < 32; ++i) put_nibble32(b->qs, i, kGridIQ4.nearest_index(scaled(x[i], d)));
}

void encode(const float* x, BlockMXFP4* b) {
  int exponent;
  std::frexp(largest_magnitude(x, 32), &exponent);  // |largest| in [2^(exponent-1), 2^exponent)
  double best_error = -1.0;
  for (int step = -5; step <= 0; ++step) {  // scale 2^(e - 128); the grid ends at 12
    const int e = std::clamp(exponent + step + 128, 0, 252);  // 252: the last e for which 12 * 2^(e - 128) is finite
    const double error = grid_error(x, 32, kGridMXFP4, std::ldexp(1.0, e - 128));
    if (best_error < 0.0 || error < best_error) {
      best_error = error;
      b->e = static_cast<uint8_t>(e);
    }
  }
  const double d = std::ldexp(1.0, b->e - 128);
  for (int i = 0; i < 32; ++i) put_nibble32(b->qs, i, kGridMXFP4.nearest_index(scaled(x[i], d)));
}

Affine stored_affine(const float* x, int hi, Half* d, Half* m) {
  const Affine fitted = fit_affine(x, 32, hi, kNoLimit);
  *d = to_half_saturated(fitted.scale);
  *m = to_half_saturated(fitted.offset);
  return {half_to_float(*d), half_to_float(*m)};
}

void encode(const float* x, BlockQ4_1* b) {
  const Affine a = stored_affine(x, 15, &b->d, &b->m);
  for (int i = 0; i < 32; ++i) put_nibble32(b->qs, i, affine_code(x[i], 15, a));
}

void encode(const float* x, BlockQ5_1* b) {
  const Affine a = stored_affine(x, 31, &b->d, &b->m);
  for (int i = 0; i < 32; ++i) {
    const int code = affine_code(x[i], 31, a);
    put_nibble32(b->qs, i, code);
    put_bit32(b->qh, i, code >> 4);
  }
}

void put_two_bits(uint8_t* bytes, int i, int code) {
  bytes[i / 128 * 32 + i % 32] |= static_cast<uint8_t>((code & 3) << (i % 128 / 32 * 2));
}

void encode(const float* x, BlockQ2_K* b) {
  const ScaledAffine fit = fit_scaled_affine(x, 16, 3, 15);
  b->d = fit.d;
  b->dmin = fit.dmin;
  for (int j = 0; j < 16; ++j) b->scales[j] = static_cast<uint8_t>(fit.scales[j] | fit.minima[j] << 4);
  for (int i = 0; i < 256; ++i) put_two_bits(b->qs, i, fit.codes[i]);
}

void encode(const float* x, BlockQ3_K* b) {
  const ScaledGrid fit = fit_scaled_grid(x, 16, {-4, 3, nullptr}, -32, 31);
  b->d = fit.d;
  for (int j = 0; j < 16; ++j) {
    const int scale = fit.scales[j] + 32;
    b->scales[j % 8] |= static_cast<uint8_t>((scale & 15) << (j / 8 * 4));
    b->scales[8 + j % 4] |= static_cast<uint8_t>((scale >> 4) << (j / 4 * 2));
  }
  for (int i = 0; i < 256; ++i) {
    const int code = fit.codes[i] + 4;
    put_two_bits(b->qs, i, code);
    b->hmask[i % 32] |= static_cast<uint8_t>((code >> 2) << (i / 32));
  }
}

void pack_q4k_scales(const ScaledAffine& fit, uint8_t* scales) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = static_cast<uint8_t>(fit.scales[j] | (fit.scales[j + 4] >> 4) << 6);
    scales[j + 4] = static_cast<uint8_t>(fit.minima[j] | (fit.minima[j + 4] >> 4) << 6);
    scales[j + 8] = static_cast<uint8_t>((fit.scales[j + 4] & 15) | (fit.minima[j + 4] & 15) << 4);
  }
}

void put_nibble64(uint8_t* qs, int i, int code) {
  qs[i / 64 * 32 + i % 32] |= static_cast<uint8_t>((code & 15) << (i % 64 / 32 * 4));
}

void encode(const float* x, BlockQ4_K* b) {
  const ScaledAffine fit = fit_scaled_affine(x, 32, 15, 63);
  b->d = fit.d;
  b->dmin = fit.dmin;
  pack_q4k_scales(fit, b->scales);
  for (int i = 0; i < 256; ++i) put_nibble64(b->qs, i, fit.codes[i]);
}

void encode(const float* x, BlockQ5_K* b) {
  const ScaledAffine fit = fit_scaled_affine(x, 32, 31, 63);
  b->d = fit.d;
  b->dmin = fit.dmin;
  pack_q4k_scales(fit, b->scales);
  for (int i = 0; i < 256; ++i) {
    put_nibble64(b->qs, i, fit.codes[i]);
    b->qh[i % 32] |= static_cast<uint8_t>((fit.codes[i] >> 4) << (i / 32));
  }
}

void encode(const float* x, BlockQ6_K* b) {
  const ScaledGrid fit = fit_scaled_grid(x, 16, {-32, 31, nullptr}, -128, 127);
  b->d = fit.d;
  for (int j = 0; j < 16; ++j) b->scales[j] = static_cast<int8_t>(fit.scales[j]);
  for (int i = 0; i < 256; ++i) {
    const int code = fit.codes[i] + 32;
    const int run = i % 128 / 32;
    b->ql[i / 128 * 64 + run % 2 * 32 + i % 32] |= static_cast<uint8_t>((code & 15) << (run / 2 * 4));
    put_two_bits(b->qh, i, code >> 4);
  }
}

void encode(const float* x, BlockIQ4_XS* b) {
  const ScaledGrid fit = fit_scaled_grid(x, 32, kGridIQ4, -32, 31);
  b->d = fit.d;
  for (int j = 0; j < 8; ++j) {
    const int scale = fit.scales[j] + 32;
    b->scales_l[j / 2] |= static_cast<uint8_t>((scale & 15) << (j % 2 * 4));
    b->scales_h = static_cast<uint16_t>(b->scales_h | (scale >> 4) << (2 * j));
  }
  for (int i = 0; i < 256; ++i) put_nibble32(b->qs + i / 32 * 16, i % 32, fit.codes[i]);
}

template <typename Block>
void encode(const float* x, Block* b) {
  encode_block(x, b);
}

template <typename Block>
void encode_row(const float* src, int64_t n, int block_size, std::byte* dst) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(src[i])) {
      throw Error(ErrorCode::kInvalidRequest, "cannot quantise: element " + std::to_string(i) + " of the row is " +
                                                  std::to_string(src[i]) + "; block formats hold finite values only");
    }
  }
  for (int64_t i = 0; i < n / block_size; ++i) {
    Block block = {};
    encode(src + i * block_size, &block);
    std::memcpy(dst + i * static_cast<int64_t>(sizeof(Block)), &block, sizeof(Block));
  }
}

template <typename Convert>
void convert_row16(const float* src, int64_t n, Convert convert, std::byte* dst) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = convert(src[i]);
    std::memcpy(dst + 2 * i, &bits, sizeof bits);
  }
}

}  // namespace

void quantize_row(DType dtype, const float* src, int64_t n, std::byte* dst) {
  const int block_size = dtype_info(dtype).block_size;
  ET_CHECK(n >= 0 && n % block_size == 0);
  switch (dtype) {
    case DType::kF32:
      if (n > 0) std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kF16: return convert_row16(src, n, float_to_half, dst);
    case DType::kBF16: return convert_row16(src, n, float_to_bfloat16, dst);
    case DType::kQ4_0: return encode_row<BlockQ4_0>(src, n, block_size, dst);
    case DType::kQ4_1: return encode_row<BlockQ4_1>(src, n, block_size, dst);
    case DType::kQ5_0: return encode_row<BlockQ5_0>(src, n, block_size, dst);
    case DType::kQ5_1: return encode_row<BlockQ5_1>(src, n, block_size, dst);
    case DType::kQ8_0: return encode_row<BlockQ8_0>(src, n, block_size, dst);
    case DType::kQ2_K: return encode_row<BlockQ2_K>(src, n, block_size, dst);
    case DType::kQ3_K: return encode_row<BlockQ3_K>(src, n, block_size, dst);
    case DType::kQ4_K: return encode_row<BlockQ4_K>(src, n, block_size, dst);
    case DType::kQ5_K: return encode_row<BlockQ5_K>(src, n, block_size, dst);
    case DType::kQ6_K: return encode_row<BlockQ6_K>(src, n, block_size, dst);
    case DType::kIQ4_NL: return encode_row<BlockIQ4_NL>(src, n, block_size, dst);
    case DType::kIQ4_XS: return encode_row<BlockIQ4_XS>(src, n, block_size, dst);
    case DType::kIQ1_S: return encode_row<BlockIQ1_S>(src, n, block_size, dst);
    case DType::kIQ1_M: return encode_row<BlockIQ1_M>(src, n, block_size, dst);
    case DType::kIQ2_XXS: return encode_row<BlockIQ2_XXS>(src, n, block_size, dst);
    case DType::kIQ2_XS: return encode_row<BlockIQ2_XS>(src, n, block_size, dst);
    case DType::kIQ2_S: return encode_row<BlockIQ2_S>(src, n, block_size, dst);
    case DType::kIQ3_XXS: return encode_row<BlockIQ3_XXS>(src, n, block_size, dst);
    case DType::kIQ3_S: return encode_row<BlockIQ3_S>(src, n, block_size, dst);
    case DType::kTQ1_0: return encode_row<BlockTQ1_0>(src, n, block_size, dst);
    case DType::kTQ2_0: return encode_row<BlockTQ2_0>(src, n, block_size, dst);
    case DType::kNVFP4: return encode_row<BlockNVFP4>(src, n, block_size, dst);
    case DType::kMXFP4: return encode_row<BlockMXFP4>(src, n, block_size, dst);
  }
  ET_CHECK(!"unreachable: every DType has a case");
}

}  // namespace expertree
