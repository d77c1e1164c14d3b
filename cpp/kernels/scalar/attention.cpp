// Attention of one query row (canonical.h, C8).
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpp/kernels/canonical.h"
#include "cpp/kernels/canonical_math.h"
#include "cpp/kernels/scalar/kernels.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

namespace expertree::scalar {
namespace {

// Element i of the row in a cell (canonical.h, C14).
float element(const CellRows& rows, int64_t cell, int64_t i) {
  const std::byte* row = rows.data + cell * rows.row_bytes;
  if (rows.dtype == DType::kF32) return reinterpret_cast<const float*>(row)[i];
  if (rows.dtype == DType::kF16) return half_to_float(reinterpret_cast<const uint16_t*>(row)[i]);
  const BlockQ8_0& block = reinterpret_cast<const BlockQ8_0*>(row)[i / 32];
  return half_to_float(block.d) * static_cast<float>(block.qs[i % 32]);
}

float dot16(const float* q, const CellRows& k, int64_t cell, int64_t n) {
  float lane[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % kLanes] = std::fma(q[i], element(k, cell, i), lane[i % kLanes]);
  return combine_lanes(lane);
}

void attend_head(const AttendArgs& args, const float* q, const float* sink, float* out) {
  const int64_t n = args.n_prefix + args.n_tail;
  const auto cell = [&](int64_t position) -> int64_t {
    return position < args.n_prefix ? position : args.tail[position - args.n_prefix];
  };
  float m = sink ? *sink : -std::numeric_limits<float>::infinity();
  float l = sink ? 1.0f : 0.0f;
  std::fill(out, out + args.head_dim_v, 0.0f);
  for (int64_t begin = args.first; begin < n; begin += kAttentionTile) {
    const int64_t t = std::min<int64_t>(kAttentionTile, n - begin);
    float s[kAttentionTile];
    float m2 = m;
    for (int64_t j = 0; j < t; ++j) {
      s[j] = dot16(q, args.k, cell(begin + j), args.head_dim_k) * args.scale;
      if (args.softcap > 0.0f) s[j] = canonical_softcap(s[j], args.softcap);
      m2 = s[j] > m2 ? s[j] : m2;
    }
    const float c = canonical_exp(m - m2);
    float lane[kLanes] = {};
    for (int64_t j = 0; j < t; ++j) {
      s[j] = canonical_exp(s[j] - m2);
      lane[j % kLanes] = lane[j % kLanes] + s[j];
    }
    l = std::fma(l, c, combine_lanes(lane));
    for (int64_t d = 0; d < args.head_dim_v; ++d) {
      out[d] = out[d] * c;
      for (int64_t j = 0; j < t; ++j) {
        out[d] = std::fma(s[j], element(args.v, cell(begin + j), d), out[d]);
      }
    }
    m = m2;
  }
  const float inverse = 1.0f / l;
  for (int64_t d = 0; d < args.head_dim_v; ++d) out[d] = out[d] * inverse;
}

}  // namespace

void attend(const AttendArgs* rows, int64_t n_rows) {
  for (const AttendArgs* args = rows; args < rows + n_rows; ++args) {
    for (int64_t h = 0; h < args->n_heads; ++h) {
      attend_head(*args, args->q + h * args->q_stride, args->sinks ? args->sinks + h : nullptr,
                  args->out + h * args->out_stride);
    }
  }
}

}  // namespace expertree::scalar
