// Products with few columns (decoding, small trees), bound by memory: rows are read one after the other, as one long
// stream, which is how the hardware's prefetchers and the few line-fill buffers of a core like it. (Sixteen rows side by
// side, as panel.h takes them, left Ice Lake at 65-80 % of a plain read: loads that hit L2 wait for the fill buffers
// that prefetches from memory hold.)
//
// A register lane is here part of a block of one row. Each row's integer sums S are kept until 16 rows are through;
// then a lane is a row and the float chain of canonical.h, C4, runs in block order as in panel.h.
#pragma once

#include "cpp/kernels/avx512/panel.h"
#include "cpp/kernels/prefetch.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kStreamColumns = 4;  // at most

// Sums of the four dwords of each 128-bit lane of v[0] .. v[3]: dword i of lane L belongs to lane L of v[i].
inline __m512i sum_quads(__m512i v0, __m512i v1, __m512i v2, __m512i v3) {
  const __m512i t0 = _mm512_add_epi32(_mm512_unpacklo_epi32(v0, v1), _mm512_unpackhi_epi32(v0, v1));
  const __m512i t1 = _mm512_add_epi32(_mm512_unpacklo_epi32(v2, v3), _mm512_unpackhi_epi32(v2, v3));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(t0, t1), _mm512_unpackhi_epi64(t0, t1));
}

// The four sums over the lanes of v[0] .. v[3].
inline __m128i sum_lanes(__m512i v0, __m512i v1, __m512i v2, __m512i v3) {
  const __m512i s = sum_quads(v0, v1, v2, v3);
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// One column's activations for a chunk of blocks.
struct StreamColumn {
  const int8_t* q;
  const float* d;
  const int16_t* sums16;
  float* y;  // of the first row
};

template <typename Stream, int kColumns>
void stream_columns(const MatmulArgs& args, int64_t row_end) {
  const QuantizedRows& x = *args.x_q;
  const int64_t n_blocks = args.k / Stream::kElements;
  alignas(64) typename Stream::template Chunk<kColumns> chunk;
  StreamColumn columns[kColumns];
  for (int c = 0; c < kColumns; ++c) {
    const int64_t x_row = args.x_rows ? args.x_rows[c] : c;
    const int64_t y_row = args.y_rows ? args.y_rows[c] : c;
    columns[c] = {x.q + x_row * x.q_stride, x.d + x_row * x.d_stride, x.sums16 + x_row * x.sums_stride,
                  args.y + y_row * args.y_stride};
  }
  for (int64_t row = args.row_begin; row < row_end; row += kPanelRows) {
    __m512 acc[kColumns];
    for (int c = 0; c < kColumns; ++c) acc[c] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b += Stream::kChunkBlocks) {
      const int n = static_cast<int>(min_of<int64_t>(Stream::kChunkBlocks, n_blocks - b));
      // One chunk holds what its columns need as long as it is the only one.
      if (row == args.row_begin || n_blocks > Stream::kChunkBlocks) chunk.prepare(columns, b, n);
      const std::byte* w = args.w + row * args.w_row_bytes + b * Stream::kBytes;
      const Ahead ahead(w, kPanelRows * args.w_row_bytes);
      for (int r = 0; r < kPanelRows; ++r) chunk.add_row(w, args.w_row_bytes, r, n, ahead);
      chunk.finish(w, args.w_row_bytes, n, ahead, acc);
    }
    for (int c = 0; c < kColumns; ++c) _mm512_storeu_ps(columns[c].y + row, acc[c]);
  }
}

// Whole groups of 16 rows for up to kStreamColumns columns; `panel` does the rest.
template <typename Stream>
void matmul_stream(const MatmulArgs& args, MatmulFn panel) {
  if (args.n_columns < 1 || args.n_columns > kStreamColumns) return panel(args);
  const int64_t row_end = args.row_begin + (args.row_end - args.row_begin) / kPanelRows * kPanelRows;
  if (args.n_columns == 1) stream_columns<Stream, 1>(args, row_end);
  if (args.n_columns == 2) stream_columns<Stream, 2>(args, row_end);
  if (args.n_columns == 3) stream_columns<Stream, 3>(args, row_end);
  if (args.n_columns == 4) stream_columns<Stream, 4>(args, row_end);
  MatmulArgs rest = args;
  rest.row_begin = row_end;
  panel(rest);
}

}  // namespace
}  // namespace expertree::avx512

#endif  // EXPERTREE_AVX512
