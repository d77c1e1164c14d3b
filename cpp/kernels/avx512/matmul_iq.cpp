// Products of the code-book and ternary formats with int8 activations, many columns (panel_q256.h).
//
// Formats differ only in how the blocks of 16 rows become bytes: those whose products look alike share their code.
#include "cpp/kernels/avx512/panel_q256.h"
#include "cpp/tensor/integer_blocks.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// A decoded block of each of 16 rows.
struct DecodedRows {
  alignas(64) uint8_t w[kPanelRows][kChunk];  // unsigned: the shape's offset is added
  alignas(32) int16_t scale[kPanelRows][16];  // per 16 elements
  alignas(64) float d[kPanelRows];
};

using DecodeRows = void (*)(const std::byte* p, int64_t stride, DecodedRows* rows);

// Lane r of out is value[r][j].
inline void store_scale_column(const int16_t (&value)[kPanelRows][16], int j, bool fits_int16, int32_t* out) {
  for (int r = 0; r < kPanelRows; ++r) out[r] = fits_int16 ? static_cast<uint16_t>(value[r][j]) : value[r][j];
}

template <Shape kShape>
class RowsFormat {
 public:
  using Panel = Panel256;
  static constexpr int kElements = 256;
  static constexpr int64_t kBytes = sizeof(BlockIQ3_S);  // of the largest block

  RowsFormat(int64_t block_bytes, DecodeRows decode) : block_bytes_(block_bytes), decode_(decode) {}

  int64_t block_bytes() const { return block_bytes_; }

  void expand(const std::byte* p, int64_t stride, int, Panel* panel) const {
    StorePanel sink{panel};
    DecodedRows rows;
    decode_(p, stride, &rows);
    expand_scales(rows, &panel->scales);
    expand_bytes(rows, sink);
  }

  template <int kColumns, int kPanels>
  static void multiply(const Panel* panels, int, const Column* columns, float (*const* acc)[kPanelRows]) {
    multiply_panels<kShape, kColumns, kPanels>(panels, columns, acc);
  }

  template <int kColumns>
  void expand_and_multiply(const std::byte* p, int64_t stride, int, const Column* columns,
                           float (*acc)[kPanelRows]) const {
    DecodedRows rows;
    Scales scales;
    decode_(p, stride, &rows);
    expand_scales(rows, &scales);
    const Scales* const all[] = {&scales};
    Product<kShape, 16, kColumns> product(all, columns);
    expand_bytes(rows, product);
    product.finish(0, acc);
  }

 private:
  static void expand_scales(const DecodedRows& rows, Scales* out) {
    for (int j = 0; j < kChunk / kShape.sub_block; ++j) {
      store_scale_column(rows.scale, j * kShape.sub_block / 16, kShape.fits_int16, out->scale[j]);
    }
    _mm512_store_ps(out->d, _mm512_load_ps(rows.d));
  }

  template <typename Sink>
  static inline __attribute__((always_inline)) void expand_bytes(const DecodedRows& rows, Sink& sink) {
    for (int element = 0; element < kChunk; element += 16) {
      __m512i w[4];
      load_rows(reinterpret_cast<const std::byte*>(rows.w[0] + element), kChunk, w);
      sink.add_group(element, w);
    }
  }

  int64_t block_bytes_;
  DecodeRows decode_;
};

constexpr Shape kSmall{16, 16, true, 16, false};  // values up to 15
constexpr Shape kBy16{16, 16, false, 64, false};  // up to 63, a scale per 16 elements
constexpr Shape kBy32{32, 32, false, 64, false};  // a scale per 32

// As plain code does it.
template <typename Block, int kOffset>
void decode_plain(const std::byte* p, int64_t stride, DecodedRows* rows) {
  for (int r = 0; r < kPanelRows; ++r) {
    Block block;
    std::memcpy(&block, p + r * stride, sizeof(block));
    IntegerBlock integers;
    decode_integers(block, &integers);
    for (int i = 0; i < kChunk; ++i) rows->w[r][i] = static_cast<uint8_t>(integers.q[i] + kOffset);
    std::memcpy(rows->scale[r], integers.scale, sizeof(integers.scale));
    rows->d[r] = integers.d;
  }
}

template <typename Block, Shape kShape>
void matmul_plain(const MatmulArgs& args) {
  matmul(args, RowsFormat<kShape>(sizeof(Block), decode_plain<Block, kShape.offset>));
}

}  // namespace

void matmul_iq1_s(const MatmulArgs& args) { matmul_plain<BlockIQ1_S, kSmall>(args); }
void matmul_iq1_m(const MatmulArgs& args) { matmul_plain<BlockIQ1_M, kSmall>(args); }
void matmul_iq2_xxs(const MatmulArgs& args) { matmul_plain<BlockIQ2_XXS, kBy32>(args); }
void matmul_iq2_xs(const MatmulArgs& args) { matmul_plain<BlockIQ2_XS, kBy16>(args); }
void matmul_iq2_s(const MatmulArgs& args) { matmul_plain<BlockIQ2_S, kBy16>(args); }
void matmul_iq3_xxs(const MatmulArgs& args) { matmul_plain<BlockIQ3_XXS, kBy32>(args); }
void matmul_iq3_s(const MatmulArgs& args) { matmul_plain<BlockIQ3_S, kSmall>(args); }
void matmul_tq1_0(const MatmulArgs& args) { matmul_plain<BlockTQ1_0, kSmall>(args); }
void matmul_tq2_0(const MatmulArgs& args) { matmul_plain<BlockTQ2_0, kSmall>(args); }

}  // namespace expertree::avx512

#endif
