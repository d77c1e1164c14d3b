// Products of the code-book and ternary formats with int8 activations, AVX2 (kernel_q256.h).
#include "cpp/kernels/avx2/panel_q256.h"
#include "cpp/tensor/integer_blocks.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

namespace expertree::avx2 {
namespace {

// The code books with a byte per element.
struct ByteTables {
  uint64_t iq2_xxs[256];
  uint64_t iq2_xs[512];
  uint64_t iq2_s[1024];
  uint32_t iq3_xxs[256];
  uint32_t iq3_s[512];
};

template <int kBits, typename Entry, int kEntries, int kValues>
void expand_grid(const uint8_t (&grid)[2][kEntries], const int8_t (&values)[kValues], Entry (&out)[kEntries]) {
  for (int i = 0; i < kEntries; ++i) {
    int8_t bytes[sizeof(Entry)];
    put_group<kBits, sizeof(Entry)>(grid, values, i, 0, bytes);
    std::memcpy(&out[i], bytes, sizeof(Entry));
  }
}

ByteTables make_tables() {
  ByteTables out;
  expand_grid<2>(kGridIQ2_XXS, kIQ2Values, out.iq2_xxs);
  expand_grid<2>(kGridIQ2_XS, kIQ2Values, out.iq2_xs);
  expand_grid<2>(kGridIQ2_S, kIQ2Values, out.iq2_s);
  expand_grid<4>(kGridIQ3_XXS, kIQ3_XXSValues, out.iq3_xxs);
  expand_grid<4>(kGridIQ3_S, kIQ3_SValues, out.iq3_s);
  return out;
}

// Made when first asked for, not when the library is loaded: this code needs AVX2.
const ByteTables& tables() {
  static const ByteTables made = make_tables();
  return made;
}

#define EXPERTREE_INLINE inline __attribute__((always_inline))

// Four entries of 8 bytes, eight of 4.
EXPERTREE_INLINE __m256i join(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return _mm256_setr_epi64x(static_cast<int64_t>(a), static_cast<int64_t>(b), static_cast<int64_t>(c),
                            static_cast<int64_t>(d));
}
EXPERTREE_INLINE __m128i join(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return set_u32(a, b, c, d); }

// Signs of a block: a bit per element, those of chunk i in bytes 4i .. 4i + 3; spread so that a chunk is one shuffle away.
struct Signs {
  __m256i low;   // chunks 0-3 in both halves
  __m256i high;  // chunks 4-7
};
inline Signs spread_signs(__m256i bits) {
  return {_mm256_permute2x128_si256(bits, bits, 0x00), _mm256_permute2x128_si256(bits, bits, 0x11)};
}

// 1 or -1 for each element of chunk kChunk.
template <int kChunk>
EXPERTREE_INLINE __m256i chunk_sign(const Signs& signs) {
  constexpr int64_t kByte = 0x0101010101010101;
  constexpr int64_t kFirst = kByte * (kChunk % 4 * 4);
  const __m256i which = _mm256_setr_epi64x(kFirst, kFirst + kByte, kFirst + 2 * kByte, kFirst + 3 * kByte);
  const __m256i bits = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i spread = _mm256_shuffle_epi8(kChunk < 4 ? signs.low : signs.high, which);
  return _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bits), bits), _mm256_set1_epi8(1));
}

// The eighth sign of each byte, from seven: it makes the number of minus signs even.
inline __m256i with_eighth_sign(__m256i sevens) {
  const __m256i odd = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_shuffle_epi8(odd, _mm256_and_si256(sevens, nibble));
  const __m256i high = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(sevens, 4), nibble));
  return _mm256_or_si256(sevens, _mm256_xor_si256(low, high));
}

// Four times seven bits of each dword to its bytes, and the eighth.
inline __m256i even_signs(__m256i dwords) {
  __m256i bytes = _mm256_and_si256(dwords, _mm256_set1_epi32(0x7f));
  bytes = _mm256_or_si256(bytes, _mm256_and_si256(_mm256_slli_epi32(dwords, 1), _mm256_set1_epi32(0x7f00)));
  bytes = _mm256_or_si256(bytes, _mm256_and_si256(_mm256_slli_epi32(dwords, 2), _mm256_set1_epi32(0x7f0000)));
  bytes = _mm256_or_si256(bytes, _mm256_and_si256(_mm256_slli_epi32(dwords, 3), _mm256_set1_epi32(0x7f000000)));
  return with_eighth_sign(bytes);
}

// 2 * x + 1 in 16-bit lanes.
inline __m128i odd(__m128i x) { return _mm_or_si128(_mm_slli_epi16(x, 1), _mm_set1_epi16(1)); }
inline __m256i odd(__m256i x) { return _mm256_or_si256(_mm256_slli_epi16(x, 1), _mm256_set1_epi16(1)); }

// The upper four bits of eight dwords.
inline Scales8 top_scales(__m256i dwords) {
  const __m256i sc = _mm256_srli_epi32(dwords, 28);
  return spread(odd(_mm_packus_epi32(_mm256_castsi256_si128(sc), _mm256_extracti128_si256(sc, 1))));
}

// Nibbles, low one first.
inline __m128i split_nibbles(__m128i bytes) {
  const __m128i mask = _mm_set1_epi8(15);
  return _mm_unpacklo_epi8(_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
}
inline __m128i load_64(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }

// What the formats have in common; the stored d is divided by a power of two (integer_blocks.h). chunk() gives magnitudes,
// sign() what the activations are multiplied with instead.
template <typename Block_>
struct Grid {
  using Block = Block_;
  static constexpr Weights kWeights = Weights::kMagnitudes;
  static constexpr bool kHasMin = false;
  static constexpr int kOffsetShift = -1;
  const Block* block;
  const ByteTables* table;
  Signs signs;

  template <int kChunk>
  EXPERTREE_INLINE __m256i sign() const {
    return chunk_sign<kChunk>(signs);
  }
};
template <typename Block>
inline __m256 scaled_halves(const std::byte* w, const int64_t* offset, float by) {
  return _mm256_mul_ps(load_halves(w + offsetof(Block, d), offset), _mm256_set1_ps(by));
}

template <size_t kValues>
constexpr int greatest(const int8_t (&values)[kValues]) {
  int most = 0;
  for (const int8_t value : values) most = value > most ? value : most;
  return most;
}

struct FormatIQ2_XXS : Grid<BlockIQ2_XXS> {
  static constexpr int kMaxStored = greatest(kIQ2Values);
  Scales8 scales;

  static __m256 d(const std::byte* w, const int64_t* offset) { return scaled_halves<Block>(w, offset, kIQ2Scale); }
  static FormatIQ2_XXS open(const Block* block) {
    const __m256 low = _mm256_castsi256_ps(load_256(block->qs[0]));
    const __m256 high = _mm256_castsi256_ps(load_256(block->qs[4]));
    const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xdd));  // 0 1 4 5, 2 3 6 7
    const __m256i aux = _mm256_castpd_si256(_mm256_permute4x64_pd(mixed, 0xd8));
    return {{block, &tables(), spread_signs(even_signs(aux))}, top_scales(aux)};
  }
  template <int kChunk>
  EXPERTREE_INLINE __m256i chunk() const {
    const uint8_t* q = block->qs[kChunk];
    const uint64_t* grid = table->iq2_xxs;
    return join(grid[q[0]], grid[q[1]], grid[q[2]], grid[q[3]]);
  }
};

struct FormatIQ2_XS : Grid<BlockIQ2_XS> {
  static constexpr int kMaxStored = greatest(kIQ2Values);
  Scales16 scales;

  static __m256 d(const std::byte* w, const int64_t* offset) { return scaled_halves<Block>(w, offset, kIQ2Scale); }
  static FormatIQ2_XS open(const Block* block) {
    const __m256i sc = _mm256_cvtepu8_epi16(split_nibbles(load_64(block->scales)));
    const __m256i low = _mm256_srli_epi16(load_256(block->qs), 9);
    const __m256i high = _mm256_srli_epi16(load_256(block->qs + 16), 9);
    const __m256i sevens = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
    return {{block, &tables(), spread_signs(with_eighth_sign(sevens))}, spread(odd(sc))};
  }
  template <int kChunk>
  EXPERTREE_INLINE __m256i chunk() const {
    uint16_t q[4];
    std::memcpy(q, block->qs + 4 * kChunk, 8);
    const uint64_t* grid = table->iq2_xs;
    return join(grid[q[0] & 511], grid[q[1] & 511], grid[q[2] & 511], grid[q[3] & 511]);
  }
};

struct FormatIQ2_S : Grid<BlockIQ2_S> {
  static constexpr int kMaxStored = greatest(kIQ2Values);
  Scales16 scales;

  static __m256 d(const std::byte* w, const int64_t* offset) { return scaled_halves<Block>(w, offset, kIQ2Scale); }
  static FormatIQ2_S open(const Block* block) {
    const __m256i sc = _mm256_cvtepu8_epi16(split_nibbles(load_64(block->scales)));
    return {{block, &tables(), spread_signs(load_256(block->signs))}, spread(odd(sc))};
  }
  template <int kChunk>
  EXPERTREE_INLINE __m256i chunk() const {
    const uint8_t* q = block->qs + 4 * kChunk;
    const uint32_t h = block->qh[kChunk];
    const auto entry = [&](int i) { return table->iq2_s[q[i] | (h << (8 - 2 * i) & 0x300)]; };
    return join(entry(0), entry(1), entry(2), entry(3));
  }
};

struct FormatIQ3_XXS : Grid<BlockIQ3_XXS> {
  static constexpr int kMaxStored = greatest(kIQ3_XXSValues);
  Scales8 scales;

  static __m256 d(const std::byte* w, const int64_t* offset) { return scaled_halves<Block>(w, offset, kIQ3_XXSScale); }
  static FormatIQ3_XXS open(const Block* block) {
    const __m256i aux = load_256(block->signs_scales[0]);
    return {{block, &tables(), spread_signs(even_signs(aux))}, top_scales(aux)};
  }
  template <int kChunk>
  EXPERTREE_INLINE __m256i chunk() const {
    const uint8_t* q = block->qs + 8 * kChunk;
    const uint32_t* grid = table->iq3_xxs;
    return _mm256_set_m128i(join(grid[q[4]], grid[q[5]], grid[q[6]], grid[q[7]]),
                            join(grid[q[0]], grid[q[1]], grid[q[2]], grid[q[3]]));
  }
};

struct FormatIQ3_S : Grid<BlockIQ3_S> {
  static constexpr int kMaxStored = greatest(kIQ3_SValues);
  Scales8 scales;

  static __m256 d(const std::byte* w, const int64_t* offset) { return load_halves(w + offsetof(Block, d), offset); }
  static FormatIQ3_S open(const Block* block) {
    const __m128i packed = _mm_cvtsi32_si128(static_cast<int32_t>(load_u32(block->scales)));
    const Scales8 scales = spread(odd(_mm_cvtepu8_epi16(split_nibbles(packed))));
    return {{block, &tables(), spread_signs(load_256(block->signs))}, scales};
  }
  template <int kChunk>
  EXPERTREE_INLINE __m256i chunk() const {
    const uint8_t* q = block->qs + 8 * kChunk;
    const uint32_t h = block->qh[kChunk];
    const auto entry = [&](int i) { return table->iq3_s[q[i] | (h << (8 - i) & 0x100)]; };
    return _mm256_set_m128i(join(entry(4), entry(5), entry(6), entry(7)), join(entry(0), entry(1), entry(2), entry(3)));
  }
};

// Formats that few files use: decoded as plain code does it.
template <typename Block_>
struct Decoded {
  using Block = Block_;
  static constexpr Weights kWeights = Weights::kSigned;
  static constexpr int kMaxStored = 9;  // IQ1's 8 * grid +- 1
  static constexpr bool kHasMin = false;
  static constexpr int kOffsetShift = -1;
  IntegerBlock integers;
  Scales16 scales;

  static __m256 d(const std::byte* w, const int64_t* offset) {
    alignas(32) float d[kRows];
    for (int i = 0; i < kRows; ++i) {
      Block block;
      std::memcpy(&block, w + offset[i], sizeof(block));
      d[i] = stored_d(block);
    }
    return _mm256_load_ps(d);
  }
  static Decoded open(const Block* at) {
    Block block;
    std::memcpy(&block, at, sizeof(block));
    Decoded out;
    decode_integers(block, &out.integers);
    out.scales = spread(load_256(out.integers.scale));
    return out;
  }
  template <int kChunk>
  EXPERTREE_INLINE __m256i chunk() const {
    return load_256(integers.q + 32 * kChunk);
  }
};

}  // namespace

void matmul_iq1_s(const MatmulArgs& args) { matmul<Kernel<Decoded<BlockIQ1_S>>, Panel256<Decoded<BlockIQ1_S>>>(args); }
void matmul_iq1_m(const MatmulArgs& args) { matmul<Kernel<Decoded<BlockIQ1_M>>, Panel256<Decoded<BlockIQ1_M>>>(args); }
void matmul_iq2_xxs(const MatmulArgs& args) { matmul<Kernel<FormatIQ2_XXS>, Panel256<FormatIQ2_XXS>>(args); }
void matmul_iq2_xs(const MatmulArgs& args) { matmul<Kernel<FormatIQ2_XS>, Panel256<FormatIQ2_XS>>(args); }
void matmul_iq2_s(const MatmulArgs& args) { matmul<Kernel<FormatIQ2_S>, Panel256<FormatIQ2_S>>(args); }
void matmul_iq3_xxs(const MatmulArgs& args) { matmul<Kernel<FormatIQ3_XXS>, Panel256<FormatIQ3_XXS>>(args); }
void matmul_iq3_s(const MatmulArgs& args) { matmul<Kernel<FormatIQ3_S>, Panel256<FormatIQ3_S>>(args); }
void matmul_tq1_0(const MatmulArgs& args) { matmul<Kernel<Decoded<BlockTQ1_0>>, Panel256<Decoded<BlockTQ1_0>>>(args); }
void matmul_tq2_0(const MatmulArgs& args) { matmul<Kernel<Decoded<BlockTQ2_0>>, Panel256<Decoded<BlockTQ2_0>>>(args); }

}  // namespace expertree::avx2

#endif
