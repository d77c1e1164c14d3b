// Causal convolution and gated delta rule (canonical.h, C10 and C11), AVX2.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpp/kernels/avx2/kernels.h"
#include "cpp/kernels/avx2/vector.h"

namespace expertree::avx2 {
namespace {

// kVectors * 8 columns of the state; in the last of them only the lanes of `mask` exist.
template <int kVectors>
inline void scan_columns(const DeltaScanArgs& args, const DeltaRow& row, int64_t column, __m256i mask) {
  constexpr int kLast = kVectors - 1;
  const auto load = [&](const float* p, int i) {
    return i == kLast ? _mm256_maskload_ps(p + 8 * i, mask) : _mm256_loadu_ps(p + 8 * i);
  };
  const auto store = [&](float* p, int i, __m256 value) {
    if (i == kLast) {
      _mm256_maskstore_ps(p + 8 * i, mask, value);
    } else {
      _mm256_storeu_ps(p + 8 * i, value);
    }
  };
  const __m256 decay = _mm256_set1_ps(row.decay);
  const __m256 beta = _mm256_set1_ps(row.beta);
  __m256 delta[kVectors];
  __m256 out[kVectors];
  for (int i = 0; i < kVectors; ++i) delta[i] = out[i] = _mm256_setzero_ps();
  const float* in = args.state + column;
  for (int64_t j = 0; j < args.n_keys; ++j, in += args.state_stride) {
    const __m256 k = _mm256_set1_ps(row.k[j]);
    for (int i = 0; i < kVectors; ++i) delta[i] = _mm256_fmadd_ps(k, _mm256_mul_ps(load(in, i), decay), delta[i]);
  }
  for (int i = 0; i < kVectors; ++i) {
    delta[i] = _mm256_mul_ps(beta, _mm256_sub_ps(load(row.v + column, i), delta[i]));
  }
  float* state = args.state + column;
  for (int64_t j = 0; j < args.n_keys; ++j, state += args.state_stride) {
    const __m256 k = _mm256_set1_ps(row.k[j]);
    const __m256 q = row.q ? _mm256_set1_ps(row.q[j]) : _mm256_setzero_ps();
    for (int i = 0; i < kVectors; ++i) {
      const __m256 moved = _mm256_fmadd_ps(k, delta[i], _mm256_mul_ps(load(state, i), decay));
      store(state, i, moved);
      out[i] = _mm256_fmadd_ps(q, moved, out[i]);
    }
  }
  if (row.q == nullptr) return;
  for (int i = 0; i < kVectors; ++i) store(row.out + column, i, out[i]);
}

template <int kVectors>
inline void scan_rows(const DeltaScanArgs& args, int64_t column, __m256i mask) {
  for (int64_t r = 0; r < args.n_rows; ++r) scan_columns<kVectors>(args, args.rows[r], column, mask);
}

}  // namespace

void convolve(const float* const* x, const float* w, int64_t n_taps, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i mask = tail_mask(n - i);
    __m256 sum = _mm256_setzero_ps();
    for (int64_t t = 0; t < n_taps; ++t) {
      sum = _mm256_fmadd_ps(_mm256_maskload_ps(w + t * n + i, mask), _mm256_maskload_ps(x[t] + i, mask), sum);
    }
    _mm256_maskstore_ps(y + i, mask, sum);
  }
}

// Columns go outside: those that are under way stay in the first cache for all rows.
void delta_scan(const DeltaScanArgs& args) {
  int64_t column = 0;
  for (; args.n_values - column >= 32; column += 32) scan_rows<4>(args, column, tail_mask(8));
  const int64_t left = args.n_values - column;
  const __m256i mask = tail_mask(left % 8 == 0 ? 8 : left % 8);
  switch ((left + 7) / 8) {
    case 1: scan_rows<1>(args, column, mask); break;
    case 2: scan_rows<2>(args, column, mask); break;
    case 3: scan_rows<3>(args, column, mask); break;
    case 4: scan_rows<4>(args, column, mask); break;
    default: break;
  }
}

}  // namespace expertree::avx2

#endif
