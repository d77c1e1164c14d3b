// What the hardware does with the 32 lanes' data: matrix products, transposing loads, reductions.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/emulation/thread_context.h"

namespace emu {

void finish_mma_s8(unsigned char (*lanes)[kMaxPayload]) {  // a lane brings a[4], b[2], d[4]
  int8_t a[16][32], b[8][32];
  int32_t d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const unsigned char* in = lanes[lane];
    __builtin_memcpy(&a[g][t * 4], in, 4);
    __builtin_memcpy(&a[g + 8][t * 4], in + 4, 4);
    __builtin_memcpy(&a[g][t * 4 + 16], in + 8, 4);
    __builtin_memcpy(&a[g + 8][t * 4 + 16], in + 12, 4);
    __builtin_memcpy(&b[g][t * 4], in + 16, 4);
    __builtin_memcpy(&b[g][t * 4 + 16], in + 20, 4);
    __builtin_memcpy(&d[g][t * 2], in + 24, 8);
    __builtin_memcpy(&d[g + 8][t * 2], in + 32, 8);
  }
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      int sum = 0;
      for (int k = 0; k < 32; ++k) sum += a[row][k] * b[column][k];
      d[row][column] += sum;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    __builtin_memcpy(lanes[lane], &d[g][t * 2], 8);
    __builtin_memcpy(lanes[lane] + 8, &d[g + 8][t * 2], 8);
  }
}

void finish_ldmatrix(unsigned char (*lanes)[kMaxPayload]) {  // a lane brings the 16 bytes at its address
  unsigned char rows[32][16];
  for (int lane = 0; lane < 32; ++lane) __builtin_memcpy(rows[lane], lanes[lane], 16);
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      __builtin_memcpy(lanes[lane] + 4 * matrix, rows[matrix * 8 + lane / 4] + 4 * (lane % 4), 4);
    }
  }
}

namespace {

template <int W, class T, class F>
void reduce_groups(unsigned char (*lanes)[kMaxPayload], F combine) {  // as the loop of xor shuffles in wrap.cuh
  T values[32], next[32];
  for (int lane = 0; lane < 32; ++lane) __builtin_memcpy(&values[lane], lanes[lane], 4);
  for (int offset = W / 2; offset > 0; offset /= 2) {
    for (int lane = 0; lane < 32; ++lane) next[lane] = combine(values[lane], values[lane ^ offset]);
    __builtin_memcpy(values, next, sizeof values);
  }
  for (int lane = 0; lane < 32; ++lane) __builtin_memcpy(lanes[lane], &values[lane], 4);
}

}  // namespace

template <int W>
void finish_sum_f32(unsigned char (*lanes)[kMaxPayload]) {
  reduce_groups<W, float>(lanes, [](float a, float b) { return a + b; });
}
template <int W>
void finish_max_f32(unsigned char (*lanes)[kMaxPayload]) {
  reduce_groups<W, float>(lanes, [](float a, float b) { return std::fmax(a, b); });
}
template <int W>
void finish_sum_i32(unsigned char (*lanes)[kMaxPayload]) {
  reduce_groups<W, unsigned>(lanes, [](unsigned a, unsigned b) { return a + b; });
}
template <int W>
void finish_max_i32(unsigned char (*lanes)[kMaxPayload]) {
  reduce_groups<W, int>(lanes, [](int a, int b) { return a > b ? a : b; });
}

#define EMU_INSTANTIATE(W)                                         \
  template void finish_sum_f32<W>(unsigned char (*)[kMaxPayload]); \
  template void finish_max_f32<W>(unsigned char (*)[kMaxPayload]); \
  template void finish_sum_i32<W>(unsigned char (*)[kMaxPayload]); \
  template void finish_max_i32<W>(unsigned char (*)[kMaxPayload]);
EMU_INSTANTIATE(2)
EMU_INSTANTIATE(4)
EMU_INSTANTIATE(8)
EMU_INSTANTIATE(16)
EMU_INSTANTIATE(32)
#undef EMU_INSTANTIATE

}  // namespace emu
