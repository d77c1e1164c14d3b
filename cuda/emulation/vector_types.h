// dim3 and CUDA's vector types, aligned as there.
#pragma once

#include <cstdint>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};

#define EMU_VECTOR2(NAME, T)           \
  struct alignas(2 * sizeof(T)) NAME { \
    T x, y;                            \
  };                                   \
  inline NAME make_##NAME(T x, T y) { return {x, y}; }
#define EMU_VECTOR4(NAME, T, ALIGNMENT) \
  struct alignas(ALIGNMENT) NAME {      \
    T x, y, z, w;                       \
  };                                    \
  inline NAME make_##NAME(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR2(char2, signed char)
EMU_VECTOR2(uchar2, unsigned char)
EMU_VECTOR2(short2, short)
EMU_VECTOR2(ushort2, unsigned short)
EMU_VECTOR2(int2, int)
EMU_VECTOR2(uint2, unsigned)
EMU_VECTOR2(float2, float)
EMU_VECTOR4(char4, signed char, 4)
EMU_VECTOR4(uchar4, unsigned char, 4)
EMU_VECTOR4(short4, short, 8)
EMU_VECTOR4(ushort4, unsigned short, 8)
EMU_VECTOR4(int4, int, 16)
EMU_VECTOR4(uint4, unsigned, 16)
EMU_VECTOR4(float4, float, 16)
#undef EMU_VECTOR2
#undef EMU_VECTOR4
