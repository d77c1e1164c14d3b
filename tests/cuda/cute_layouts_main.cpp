// Compares the emulation's mma.m16n8k32 and ldmatrix.x4 with the fragment layouts that CuTe's traits state. CUTLASS's
// headers (nvidia-cutlass) are needed to compile it; test_fragment_layouts.py does, where they are. Prints mismatches.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>

// As in cuda/emulation/thread_context.h, whose other names the toolkit's headers have, too.
namespace emu {
constexpr unsigned kMaxPayload = 64;
void finish_mma_s8(unsigned char (*lanes)[kMaxPayload]);
void finish_ldmatrix(unsigned char (*lanes)[kMaxPayload]);
}  // namespace emu

namespace {

using Lanes = unsigned char[32][emu::kMaxPayload];

uint32_t g_state = 1;
int8_t random_byte() {
  g_state ^= g_state << 13;
  g_state ^= g_state >> 17;
  g_state ^= g_state << 5;
  return static_cast<int8_t>(g_state);
}

int mma_mismatches() {
  using Traits = cute::MMA_Traits<cute::SM80_16x8x32_S32S8S8S32_TN>;
  constexpr typename Traits::ALayout a_at;  // (lane, value) -> m + 16 k
  constexpr typename Traits::BLayout b_at;  // (lane, value) -> n + 8 k
  constexpr typename Traits::CLayout c_at;  // (lane, value) -> m + 16 n
  int8_t a[16 * 32], b[8 * 32];
  int32_t c[16 * 8];
  for (int8_t& x : a) x = random_byte();
  for (int8_t& x : b) x = random_byte();
  for (int32_t& x : c) x = random_byte() * 1000;
  Lanes lanes{};
  for (int lane = 0; lane < 32; ++lane) {
    for (int v = 0; v < 16; ++v) std::memcpy(&lanes[lane][v], &a[a_at(lane, v)], 1);
    for (int v = 0; v < 8; ++v) std::memcpy(&lanes[lane][16 + v], &b[b_at(lane, v)], 1);
    for (int v = 0; v < 4; ++v) std::memcpy(&lanes[lane][24 + 4 * v], &c[c_at(lane, v)], 4);
  }
  emu::finish_mma_s8(lanes);
  int n = 0;
  for (int lane = 0; lane < 32; ++lane) {
    for (int v = 0; v < 4; ++v) {
      const int at = c_at(lane, v), row = at % 16, column = at / 16;
      int32_t want = c[at], got = 0;
      for (int k = 0; k < 32; ++k) want += a[row + 16 * k] * b[column + 8 * k];
      std::memcpy(&got, &lanes[lane][4 * v], 4);
      n += got != want;
    }
  }
  return n;
}

int ldmatrix_mismatches() {
  using Traits = cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>;
  constexpr typename Traits::SrcLayout from;  // (lane, bit) -> bit of the matrices
  constexpr typename Traits::DstLayout to;
  int8_t memory[512];
  for (int8_t& x : memory) x = random_byte();
  Lanes lanes{};
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 16; ++i) std::memcpy(&lanes[lane][i], &memory[from(lane, 8 * i) / 8], 1);
  }
  emu::finish_ldmatrix(lanes);
  int n = 0;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 16; ++i) n += std::memcmp(&lanes[lane][i], &memory[to(lane, 8 * i) / 8], 1) != 0;
  }
  return n;
}

}  // namespace

int main() {
  const int mma = mma_mismatches(), ldmatrix = ldmatrix_mismatches();
  std::printf("mma %d ldmatrix %d\n", mma, ldmatrix);
  return mma + ldmatrix != 0;
}
