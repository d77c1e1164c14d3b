// How the AVX-512 products of quantised weights work (canonical.h, C4).
//
// A panel is 16 weight rows by a chunk of 256 elements, expanded to unsigned bytes in an order where a lane is a row:
//   w[t][r][j] = element 4t + j of row r, plus the format's offset.
// One vpdpbusd of w[t] with activations 4t .. 4t+3 broadcast then adds four products for 16 rows, so that the sum of a
// block needs no horizontal step and the float chain of C4 runs for 16 rows in one register, in block order.
//
// Up to four columns multiply the bytes as they come out of the expansion, in registers (one column: 1.2-1.5 times as
// fast as through memory). More columns expand once to 4 KiB in L1 and use that in groups of eight: each broadcast is
// one 64-byte load, of which Ice Lake and Zen 4 do one per cycle, and is used by one of two possible vpdpbusd.
// Measured on Ice Lake, 768 x 2048: 8 columns 24-39% of vpdpbusd's peak, 64 columns 41-50%.
//
// The offset makes weights unsigned. Its share, offset * sum(q), is subtracted by starting the integer sum there.
#pragma once

#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

constexpr int kPanelRows = 16;
constexpr int kChunk = 256;         // elements
constexpr int kMaxColumns = 8;         // that share registers
constexpr int kFusedColumns = 4;       // at most this many: no expanded panel in memory
constexpr int64_t kStripColumns = 64;  // that share an expanded panel: their sums stay on the stack

using Bytes = uint8_t[kChunk / 4][64];  // w[t][4 * row + j]

inline __m512i load_512(const void* p) { return _mm512_loadu_si512(p); }
inline __m512i and_bytes(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
inline __m512i low_nibbles(__m512i v) { return and_bytes(v, 15); }
inline __m512i high_nibbles(__m512i v) { return and_bytes(_mm512_srli_epi16(v, 4), 15); }

// Reads 16 bytes from each of 16 rows; lane r of out[t] is bytes 4t .. 4t+3 of row r.
inline void load_rows(const std::byte* p, int64_t stride, __m512i (&out)[4]) {
  __m512i v[4];  // 128-bit lane L of v[i] is row 4L + i
  for (int i = 0; i < 4; ++i) {
    const std::byte* row = p + i * stride;
    v[i] = _mm512_castsi128_si512(load_16_bytes(row));
    v[i] = _mm512_inserti32x4(v[i], load_16_bytes(row + 4 * stride), 1);
    v[i] = _mm512_inserti32x4(v[i], load_16_bytes(row + 8 * stride), 2);
    v[i] = _mm512_inserti32x4(v[i], load_16_bytes(row + 12 * stride), 3);
  }
  const __m512i t0 = _mm512_unpacklo_epi32(v[0], v[1]);
  const __m512i t1 = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i t2 = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i t3 = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = _mm512_unpacklo_epi64(t0, t1);
  out[1] = _mm512_unpackhi_epi64(t0, t1);
  out[2] = _mm512_unpacklo_epi64(t2, t3);
  out[3] = _mm512_unpackhi_epi64(t2, t3);
}

// One T from each of 16 rows.
template <typename T>
inline void copy_from_rows(const std::byte* p, int64_t stride, T* out) {
#pragma GCC unroll 16
  for (int r = 0; r < kPanelRows; ++r) std::memcpy(out + r, p + r * stride, sizeof(T));
}

// In every dword, by vpshufb: a control byte of 0x80 gives zero, another counts from the dword's first byte.
inline __m512i pick_bytes(__m512i v, uint32_t control) {
  const __m128i dwords = _mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  const __m128i controls = _mm_add_epi8(_mm_set1_epi32(static_cast<int32_t>(control)), dwords);
  return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(controls));
}
inline __m512i unsigned_byte(__m512i v, unsigned j) { return pick_bytes(v, 0x80808000u | j); }
inline __m512i signed_byte_as_int16(__m512i v, unsigned j) {  // and zero above
  return _mm512_srai_epi16(pick_bytes(v, 0x80800080u | j << 8), 8);
}
inline __m512i signed_byte_as_int32(__m512i v, unsigned j) {
  return _mm512_srai_epi32(pick_bytes(v, 0x00808080u | j << 24), 24);
}
inline __m512i byte_pair(__m512i v, unsigned j, unsigned k) {  // two uint16
  return pick_bytes(v, 0x80008000u | j | k << 16);
}

// Halves in the low or high 16 bits of 16 lanes.
inline __m512 low_halves(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
inline __m512 high_halves(__m512i v) { return low_halves(_mm512_srli_epi32(v, 16)); }

// One column's activations for a chunk.
struct Column {
  const int8_t* q;
  const float* d;
  const int16_t* sums16;
};

// Every column of the strip with an expanded panel: groups of 8, and what is left in groups of 4, 2 and 1.
template <typename Format, int kColumns>
inline void multiply_columns(const typename Format::Panel& panel, int n_blocks, const Column* columns, int64_t n,
                             float (*acc)[kPanelRows]) {
  int64_t c = 0;
  for (; c + kColumns <= n; c += kColumns) {
    Format::template multiply<kColumns>(panel, n_blocks, columns + c, acc + c);
  }
  if constexpr (kColumns > 1) {
    if (c < n) multiply_columns<Format, kColumns / 2>(panel, n_blocks, columns + c, n - c, acc + c);
  }
}

// One chunk of 16 rows for n columns. columns and acc have room for kFusedColumns at least.
template <typename Format>
inline void multiply_chunk(const std::byte* p, int64_t stride, int n_blocks, Column* columns, int64_t n,
                           typename Format::Panel* panel, float (*acc)[kPanelRows]) {
  if (n == 1) {
    Format::template expand_and_multiply<1>(p, stride, n_blocks, columns, acc);
  } else if (n == 2) {
    Format::template expand_and_multiply<2>(p, stride, n_blocks, columns, acc);
  } else if (n <= kFusedColumns) {
    if (n == 3) columns[3] = columns[2];  // its result is not used
    Format::template expand_and_multiply<4>(p, stride, n_blocks, columns, acc);
  } else {
    Format::expand(p, stride, n_blocks, panel);
    multiply_columns<Format, kMaxColumns>(*panel, n_blocks, columns, n, acc);
  }
}

// y for the rows [row, row + n_rows) of one panel and the columns [strip, strip + n_columns).
template <typename Format>
void matmul_panel(const MatmulArgs& args, int64_t row, int64_t n_rows, int64_t strip, int64_t n_columns) {
  constexpr int64_t kBlocks = kChunk / Format::kElements;  // blocks per chunk
  constexpr int64_t kChunkBytes = kBlocks * Format::kBytes;
  const QuantizedRows& x = *args.x_q;
  alignas(64) float acc[kStripColumns][kPanelRows];
  alignas(64) typename Format::Panel panel;
  alignas(64) std::byte copy[kPanelRows * kChunkBytes];  // of a panel with fewer than 16 rows
  std::memset(acc, 0, static_cast<size_t>(max_of<int64_t>(n_columns, kFusedColumns)) * sizeof(acc[0]));
  if (n_rows < kPanelRows) std::memset(copy, 0, sizeof(copy));

  const std::byte* w = args.w + row * args.w_row_bytes;
  const int64_t n_blocks_in_row = args.k / Format::kElements;
  for (int64_t b = 0; b < n_blocks_in_row; b += kBlocks) {
    const int64_t n_blocks = min_of(kBlocks, n_blocks_in_row - b);
    const std::byte* chunk = w + b * Format::kBytes;
    Column columns[kStripColumns];
    for (int64_t c = 0; c < n_columns; ++c) {
      const int64_t x_row = args.x_rows ? args.x_rows[strip + c] : strip + c;
      columns[c] = {x.q + x_row * x.q_stride + b * Format::kElements, x.d + x_row * x.d_stride + b,
                    x.sums16 + x_row * x.sums_stride + b * Format::kElements / 16};
    }
    int64_t stride = args.w_row_bytes;
    if (n_rows < kPanelRows) {
      for (int64_t r = 0; r < n_rows; ++r) {
        std::memcpy(copy + r * kChunkBytes, chunk + r * stride, static_cast<size_t>(n_blocks * Format::kBytes));
      }
      chunk = copy;
      stride = kChunkBytes;
    } else if (strip == 0 && row + 2 * kPanelRows <= args.row_end) {
      // The next panel in address order, at the pace of this one: the rows themselves are read 16 streams at a time.
      // One column, of one core's memory read (Ice Lake, shared machine): without 64-79%, to L1 78-93%, to L2 76-85%.
      // L2, because a panel of long rows is larger than L1.
      const std::byte* next = w + kPanelRows * (args.w_row_bytes + b * Format::kBytes);
      for (int64_t i = 0; i < kPanelRows * n_blocks * Format::kBytes; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T1);
      }
    }
    multiply_chunk<Format>(chunk, stride, static_cast<int>(n_blocks), columns, n_columns, &panel, acc);
  }
  for (int64_t c = 0; c < n_columns; ++c) {
    const int64_t y_row = args.y_rows ? args.y_rows[strip + c] : strip + c;
    _mm512_mask_storeu_ps(args.y + y_row * args.y_stride + row, first_lanes(n_rows), _mm512_load_ps(acc[c]));
  }
}

template <typename Format>
void matmul(const MatmulArgs& args) {
  for (int64_t strip = 0; strip < args.n_columns; strip += kStripColumns) {
    const int64_t n_columns = min_of(kStripColumns, args.n_columns - strip);
    for (int64_t row = args.row_begin; row < args.row_end; row += kPanelRows) {
      matmul_panel<Format>(args, row, min_of<int64_t>(kPanelRows, args.row_end - row), strip, n_columns);
    }
  }
}

}  // namespace
}  // namespace expertree::avx512

#endif  // EXPERTREE_AVX512
