// Attention of one query row (canonical.h, C8).
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpp/kernels/canonical.h"
#include "cpp/kernels/canonical_math.h"
#include "cpp/kernels/scalar/kernels.h"

namespace expertree::scalar {
namespace {

float dot16(const float* x, const float* y, int64_t n) {
  float lane[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % kLanes] = std::fma(x[i], y[i], lane[i % kLanes]);
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
      s[j] = dot16(q, args.k + cell(begin + j) * args.head_dim_k, args.head_dim_k) * args.scale;
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
        out[d] = std::fma(s[j], args.v[cell(begin + j) * args.v_stride + d], out[d]);
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
