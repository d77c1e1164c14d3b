// What a lane holds and adds up in products on tensor cores (product_mma.cuh).
#pragma once

#include "cuda/gpu/gpu.h"
#include "cuda/kernels/weights256.cuh"

namespace expertree::cuda {

// A lane's outputs of one n8 step: [0], [1] of its lower weight row and columns 2c, 2c + 1; [2], [3] of its upper row.
struct Fragment {
  float acc[4];
  int sum[4];
  int min_sum[4];  // only of 256-element formats with minimums
};

struct FragmentWeights {
  int a[8];  // words of the lower row
  int b[8];  // of the upper row
};

__device__ __forceinline__ void mma_words(int (&d)[4], const FragmentWeights& w, const int (&x)[8], int s) {
  const int a[4] = {w.a[2 * s], w.b[2 * s], w.a[2 * s + 1], w.b[2 * s + 1]};
  const int b[2] = {x[2 * s], x[2 * s + 1]};
  gpu_mma_m16n8k32_s8(d, a, b);
}

// Word 2 s + h alone: sixteen elements.
__device__ __forceinline__ void mma_word(int (&d)[4], const FragmentWeights& w, const int (&x)[8], int word) {
  const int a[2] = {w.a[word], w.b[word]};
  gpu_mma_m16n8k16_s8(d, a, x[word]);
}

// One group of a 32-element format: up to four blocks, each a link of the chain.
template <class W>
__device__ __forceinline__ void add_group32(const Scales4 (&rows)[2], int group, int n_blocks, const FragmentWeights& w,
                                            const int (&x)[8], const float* const (&dx)[2],
                                            const int16_t* const (&sums)[2], Fragment* out) {
  const float4 d0 = __ldg(reinterpret_cast<const float4*>(dx[0]) + group);
  const float4 d1 = __ldg(reinterpret_cast<const float4*>(dx[1]) + group);
  const float scales[2][4] = {{d0.x, d0.y, d0.z, d0.w}, {d1.x, d1.y, d1.z, d1.w}};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int block = group * 4 + s;
    if (block >= n_blocks) break;
    int sum[4] = {0, 0, 0, 0};
    mma_words(sum, w, x, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = scales[i % 2][s];
      out->acc[i] = __fmaf_rn(__int2float_rn(sum[i]), __fmul_rn(rows[i / 2].d[s], scale), out->acc[i]);
      if constexpr (W::kHasMin) {
        const int x_sum = sums[i % 2][group * 8 + 2 * s] + sums[i % 2][group * 8 + 2 * s + 1];
        out->acc[i] = __fmaf_rn(__int2float_rn(x_sum), __fmul_rn(rows[i / 2].m[s], scale), out->acc[i]);
      }
    }
  }
}

// One group of a 256-element format, half a block: integers only.
template <class W>
__device__ __forceinline__ void add_group256(const typename W::Raw (&raw)[2], int group, const FragmentWeights& w,
                                             const int (&x)[8], const int16_t* const (&sums)[2], Fragment* out) {
  if constexpr (W::kFoldsScale) {
#pragma unroll
    for (int s = 0; s < 4; ++s) mma_words(out->sum, w, x, s);
  } else {
    const decltype(W::scales(raw[0], group)) scales[2] = {W::scales(raw[0], group), W::scales(raw[1], group)};
#pragma unroll
    for (int j = 0; j < 128 / W::kSub; ++j) {
      int sum[4] = {0, 0, 0, 0};
      if constexpr (W::kSub == 32) {
        mma_words(sum, w, x, j);
      } else {
        mma_word(sum, w, x, j);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) out->sum[i] += byte_of(scales[i / 2].w[j / 4], j % 4) * sum[i];
    }
  }
  if constexpr (W::kHasMin) {
    const decltype(W::mins(raw[0], group)) mins[2] = {W::mins(raw[0], group), W::mins(raw[1], group)};
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int4 packed = __ldg(reinterpret_cast<const int4*>(sums[column]) + group);
      const int pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const int low = static_cast<int16_t>(pairs[s]);
        const int high = pairs[s] >> 16;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          int* min_sum = &out->min_sum[2 * r + column];
          if constexpr (W::kSub == 32) {
            *min_sum += byte_of(mins[r].w[0], s) * (low + high);
          } else {
            *min_sum += byte_of(mins[r].w[s / 2], s % 2 * 2) * low + byte_of(mins[r].w[s / 2], s % 2 * 2 + 1) * high;
          }
        }
      }
    }
  }
}

// The links of a block of 256.
template <class W>
__device__ __forceinline__ void end_block(const float (&d)[2], const float (&dmin)[2], int block,
                                          const float* const (&dx)[2], Fragment* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float scale = dx[i % 2][block];
    out->acc[i] = __fmaf_rn(__int2float_rn(out->sum[i]), __fmul_rn(d[i / 2], scale), out->acc[i]);
    out->sum[i] = 0;
    if constexpr (W::kHasMin) {
      out->acc[i] = __fmaf_rn(-__int2float_rn(out->min_sum[i]), __fmul_rn(dmin[i / 2], scale), out->acc[i]);
      out->min_sum[i] = 0;
    }
  }
}

// A block's scales of a lane's two rows: what a group of a format needs beside its words.
template <class W>
struct RowScales {
  float d[2];
  float dmin[2];
  __device__ RowScales(const PackedRow (&rows)[2], const typename W::Raw (&raw)[2], int group) : d{}, dmin{} {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      d[r] = W::d(rows[r], raw[r], group / 2);
      if constexpr (W::kHasMin) dmin[r] = W::dmin(rows[r], raw[r], group / 2);
    }
  }
};
template <class W>
  requires(W::kBlock == 32)
struct RowScales<W> {
  Scales4 row[2];
  __device__ RowScales(const PackedRow (&rows)[2], const typename W::Raw (&)[2], int group)
      : row{W::scales(rows[0], group), W::scales(rows[1], group)} {}
};

}  // namespace expertree::cuda
