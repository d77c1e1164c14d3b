// Products of the code-book and ternary formats with int8 activations, many columns (panel_q256.h).
//
// Formats differ only in how blocks become an expanded panel: those whose products look alike share their code.
#include "cpp/kernels/avx512/grid.h"
#include "cpp/kernels/avx512/panel_q256.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// Expands the blocks of 16 rows at p.
using ExpandRows = void (*)(const std::byte* p, int64_t stride, Panel256* panel);

template <Shape kShape>
class RowsFormat {
 public:
  using Panel = Panel256;
  static constexpr int kElements = 256;
  static constexpr int kPacedSteps = 2;  // in each group of columns
  static constexpr int64_t kBytes = sizeof(BlockIQ3_S);  // of the largest block

  RowsFormat(int64_t block_bytes, ExpandRows expand) : block_bytes_(block_bytes), expand_(expand) {}

  int64_t block_bytes() const { return block_bytes_; }

  void expand(const std::byte* p, int64_t stride, int, Panel* panel, Pace* pace) const {
    pace->step();
    expand_(p, stride, panel);
    pace->step();
  }

  template <bool kPaced, int kColumns, int kPanels>
  static void multiply(const Panel* panels, int, const Column* columns, float (*const* acc)[kPanelRows], Pace* pace) {
    multiply_panels<kShape, kPaced, kColumns, kPanels>(panels, columns, acc, pace);
  }

  template <int kColumns>
  void expand_and_multiply(const std::byte* p, int64_t stride, int, const Column* columns,
                           float (*acc)[kPanelRows]) const {
    Panel panel;
    expand_(p, stride, &panel);
    float (*const accs[])[kPanelRows] = {acc};
    multiply_panels<kShape, false, kColumns, 1>(&panel, columns, accs, nullptr);
  }

 private:
  int64_t block_bytes_;
  ExpandRows expand_;
};

// Values up to 15; scales are not negative: (int16, 0) is int32.
constexpr Shape kSmall{16, 16, true, OddGroupsOf4::kOffset, false};
constexpr Shape kBy16{16, 16, false, GroupsOf8::kOffset, false};  // up to 63, a scale per 16 elements
constexpr Shape kBy32{32, 32, false, GroupsOf8::kOffset, false};  // a scale per 32

// As plain code does it.
template <typename Block>
void expand_plain(const std::byte* p, int64_t stride, Panel256* panel) {
  alignas(64) uint8_t w[kPanelRows][kChunk];
  for (int r = 0; r < kPanelRows; ++r) {
    Block block;
    std::memcpy(&block, p + r * stride, sizeof(block));
    IntegerBlock integers;
    decode_integers(block, &integers);
    for (int i = 0; i < kChunk; ++i) w[r][i] = static_cast<uint8_t>(integers.q[i] + kSmall.offset);
    for (int j = 0; j < 16; ++j) panel->scales.scale[j][r] = integers.scale[j];
    panel->scales.d[r] = integers.d;
  }
  StorePanel sink{panel};
  for (int element = 0; element < kChunk; element += 16) {
    __m512i chunk[4];
    load_rows(reinterpret_cast<const std::byte*>(w[0] + element), kChunk, chunk);
    sink.add_group(element, chunk);
  }
}

// The dwords of 16 rows at p + 4t .. as nibbles: the scale of sub-block j is 2 * nibble + 1.
inline __m512i odd_nibble(__m512i dwords, int j) {
  return odd_dwords(_mm512_and_si512(_mm512_srli_epi32(dwords, 4 * static_cast<unsigned>(j)), _mm512_set1_epi32(15)));
}

inline void expand_scales(GridIQ2_XXS, const std::byte* p, int64_t stride, Scales* out) {
  for (int i = 0; i < 4; ++i) {  // two sub-blocks in 16 bytes
    __m512i v[4];
    load_rows(p + offsetof(BlockIQ2_XXS, qs) + 16 * i, stride, v);
    _mm512_store_si512(out->scale[2 * i], odd_dwords(_mm512_srli_epi32(v[1], 28)));
    _mm512_store_si512(out->scale[2 * i + 1], odd_dwords(_mm512_srli_epi32(v[3], 28)));
  }
}
inline void expand_scales(GridIQ3_XXS, const std::byte* p, int64_t stride, Scales* out) {
  for (int i = 0; i < 2; ++i) {
    __m512i v[4];
    load_rows(p + offsetof(BlockIQ3_XXS, signs_scales) + 16 * i, stride, v);
    for (int t = 0; t < 4; ++t) _mm512_store_si512(out->scale[4 * i + t], odd_dwords(_mm512_srli_epi32(v[t], 28)));
  }
}
template <typename Block>
inline void expand_nibble_scales(const std::byte* p, int64_t stride, Scales* out) {
  static_assert(offsetof(Block, scales) + 8 == sizeof(Block));
  __m512i v[4];
  load_rows(p + sizeof(Block) - 16, stride, v);
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) _mm512_store_si512(out->scale[j], odd_nibble(v[2 + j / 8], j % 8));
}
inline void expand_scales(GridIQ2_XS, const std::byte* p, int64_t stride, Scales* out) {
  expand_nibble_scales<BlockIQ2_XS>(p, stride, out);
}
inline void expand_scales(GridIQ2_S, const std::byte* p, int64_t stride, Scales* out) {
  expand_nibble_scales<BlockIQ2_S>(p, stride, out);
}
inline void expand_scales(GridIQ3_S, const std::byte* p, int64_t stride, Scales* out) {
  static_assert(offsetof(BlockIQ3_S, scales) + 4 == sizeof(BlockIQ3_S));
  __m512i v[4];
  load_rows(p + sizeof(BlockIQ3_S) - 16, stride, v);
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) _mm512_store_si512(out->scale[j], odd_nibble(v[3], j / 2));
}

// Parts to elements: register i of the result holds in each lane the 16 bytes that are i-th there. A lane has 16 groups.
inline void join_parts(const __m512i (&part)[4], __m512i (&out)[4]) {
  const __m512i low01 = _mm512_unpacklo_epi8(part[0], part[1]), high01 = _mm512_unpackhi_epi8(part[0], part[1]);
  const __m512i low23 = _mm512_unpacklo_epi8(part[2], part[3]), high23 = _mm512_unpackhi_epi8(part[2], part[3]);
  out[0] = _mm512_unpacklo_epi16(low01, low23);
  out[1] = _mm512_unpackhi_epi16(low01, low23);
  out[2] = _mm512_unpacklo_epi16(high01, high23);
  out[3] = _mm512_unpackhi_epi16(high01, high23);
}
inline void join_parts(const __m512i (&part)[8], __m512i (&out)[8]) {
  __m512i first[4], second[4];  // elements 0-3 and 4-7 of four groups
  join_parts({part[0], part[1], part[2], part[3]}, first);
  join_parts({part[4], part[5], part[6], part[7]}, second);
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = _mm512_unpacklo_epi32(first[i], second[i]);
    out[2 * i + 1] = _mm512_unpackhi_epi32(first[i], second[i]);
  }
}

// Opens the rows' blocks unit by unit (IQ2: two rows at a time), puts their elements in order, turns rows into lanes.
template <typename Grid>
void expand_grid(const std::byte* p, int64_t stride, Panel256* panel) {
  constexpr int kParts = Grid::kParts;
  constexpr int kUnitRows = kParts / 4;
  constexpr int kLanes16 = 4 / kUnitRows;  // 128-bit lanes of a row
  alignas(64) uint8_t joined[kPanelRows / kUnitRows][kParts][64];
  for (int r = 0; r < kPanelRows; r += kUnitRows) {
    __m512i part[kParts], ordered[kParts];
    Grid::open(Grid::read(p + r * stride, p + (r + kUnitRows - 1) * stride), part);
    join_parts(part, ordered);
    for (int i = 0; i < kParts; ++i) _mm512_store_si512(joined[r / kUnitRows][i], ordered[i]);
  }
  const auto chunk_at = [&](int r, int chunk) {
    const int lane = r % kUnitRows * kLanes16 + chunk / kParts;
    return load_16_bytes(reinterpret_cast<const std::byte*>(joined[r / kUnitRows][chunk % kParts] + 16 * lane));
  };
  StorePanel sink{panel};
  for (int chunk = 0; chunk < kChunk / 16; ++chunk) {
    __m512i out[4];
    transpose_rows([&](int r) { return chunk_at(r, chunk); }, out);
    sink.add_group(16 * chunk, out);
  }
  expand_scales(Grid(), p, stride, &panel->scales);
  _mm512_store_ps(panel->scales.d, stored_scales<typename Grid::Block>(p, stride));
}

template <typename Block>
void matmul_plain(const MatmulArgs& args) {
  matmul(args, RowsFormat<kSmall>(sizeof(Block), expand_plain<Block>));
}

template <typename Grid, Shape kShape>
void matmul_grid(const MatmulArgs& args) {
  static_assert(kShape.offset == Grid::kOffset);
  matmul(args, RowsFormat<kShape>(sizeof(typename Grid::Block), expand_grid<Grid>));
}

}  // namespace

void matmul_iq1_s(const MatmulArgs& args) { matmul_plain<BlockIQ1_S>(args); }
void matmul_iq1_m(const MatmulArgs& args) { matmul_plain<BlockIQ1_M>(args); }
void matmul_tq1_0(const MatmulArgs& args) { matmul_plain<BlockTQ1_0>(args); }
void matmul_tq2_0(const MatmulArgs& args) { matmul_plain<BlockTQ2_0>(args); }
void panel_iq2_xxs(const MatmulArgs& args) { matmul_grid<GridIQ2_XXS, kBy32>(args); }
void panel_iq2_xs(const MatmulArgs& args) { matmul_grid<GridIQ2_XS, kBy16>(args); }
void panel_iq2_s(const MatmulArgs& args) { matmul_grid<GridIQ2_S, kBy16>(args); }
void panel_iq3_xxs(const MatmulArgs& args) { matmul_grid<GridIQ3_XXS, kBy32>(args); }
void panel_iq3_s(const MatmulArgs& args) { matmul_grid<GridIQ3_S, kSmall>(args); }

}  // namespace expertree::avx512

#endif
