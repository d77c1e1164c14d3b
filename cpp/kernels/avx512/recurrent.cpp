// Causal convolution and gated delta rule (canonical.h, C10 and C11), AVX-512.
#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// kVectors * 16 columns of the state; in the last of them only the lanes of `mask` exist.
template <int kVectors>
inline void scan_columns(const DeltaScanArgs& args, const DeltaRow& row, int64_t column, __mmask16 mask) {
  constexpr __mmask16 kAll = 0xffff;
  const auto lanes = [mask](int i) { return i == kVectors - 1 ? mask : kAll; };
  const auto load = [&](const float* p, int i) { return _mm512_maskz_loadu_ps(lanes(i), p + 16 * i); };
  const __m512 decay = set1(row.decay);
  __m512 delta[kVectors];
  __m512 out[kVectors];
  for (int i = 0; i < kVectors; ++i) delta[i] = out[i] = _mm512_setzero_ps();
  const float* in = args.state + column;
  for (int64_t j = 0; j < args.n_keys; ++j, in += args.state_stride) {
    const __m512 k = set1(row.k[j]);
    for (int i = 0; i < kVectors; ++i) delta[i] = _mm512_fmadd_ps(k, _mm512_mul_ps(load(in, i), decay), delta[i]);
  }
  for (int i = 0; i < kVectors; ++i) {
    delta[i] = _mm512_mul_ps(set1(row.beta), _mm512_sub_ps(load(row.v + column, i), delta[i]));
  }
  float* state = args.state + column;
  for (int64_t j = 0; j < args.n_keys; ++j, state += args.state_stride) {
    const __m512 k = set1(row.k[j]);
    const __m512 q = row.q ? set1(row.q[j]) : _mm512_setzero_ps();
    for (int i = 0; i < kVectors; ++i) {
      const __m512 moved = _mm512_fmadd_ps(k, delta[i], _mm512_mul_ps(load(state, i), decay));
      _mm512_mask_storeu_ps(state + 16 * i, lanes(i), moved);
      out[i] = _mm512_fmadd_ps(q, moved, out[i]);
    }
  }
  if (row.q == nullptr) return;
  for (int i = 0; i < kVectors; ++i) _mm512_mask_storeu_ps(row.out + column + 16 * i, lanes(i), out[i]);
}

template <int kVectors>
inline void scan_rows(const DeltaScanArgs& args, int64_t column, __mmask16 mask) {
  for (int64_t r = 0; r < args.n_rows; ++r) scan_columns<kVectors>(args, args.rows[r], column, mask);
}

}  // namespace

void convolve(const float* const* x, const float* w, int64_t n_taps, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t t = 0; t < n_taps; ++t) {
      sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, w + t * n + i), _mm512_maskz_loadu_ps(mask, x[t] + i), sum);
    }
    _mm512_mask_storeu_ps(y + i, mask, sum);
  }
}

// Columns go outside: those that are under way stay in the first cache for all rows.
void delta_scan(const DeltaScanArgs& args) {
  int64_t column = 0;
  for (; args.n_values - column >= 64; column += 64) scan_rows<4>(args, column, first_lanes(16));
  const int64_t left = args.n_values - column;
  const __mmask16 mask = first_lanes(left % 16 == 0 ? 16 : left % 16);
  switch ((left + 15) / 16) {
    case 1: scan_rows<1>(args, column, mask); break;
    case 2: scan_rows<2>(args, column, mask); break;
    case 3: scan_rows<3>(args, column, mask); break;
    case 4: scan_rows<4>(args, column, mask); break;
    default: break;
  }
}

}  // namespace expertree::avx512

#endif
