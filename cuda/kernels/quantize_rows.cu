// Rows of floats to int8 (canonical.h, C3): a warp for 128 elements, or for a block of 256; a lane has four elements.
#include "cuda/kernels/int8_block.cuh"
#include "cuda/kernels/int8_rows.h"

namespace expertree::cuda {
namespace {

constexpr int kWarps = 4;

struct QuantizeArgs {
  const float* x;
  int64_t x_stride;
  int64_t n_rows;
  int64_t n;
  Int8Rows out;
};

// Largest magnitude of a block: its bits.
template <int kBlock>
__device__ int block_max(const float (&x)[kBlock == 256 ? 8 : 4]) {
  int bits = 0;
  for (const float value : x) bits = max(bits, __float_as_int(value) & 0x7fffffff);
  return gpu_group_max<kBlock == 256 ? 32 : 8>(bits);
}

template <int kBlock>
__global__ void __launch_bounds__(kWarps * 32) quantize_rows(QuantizeArgs args) {
  constexpr int kGroups = kBlock == 256 ? 2 : 1;  // of 128 elements, to a warp
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t spans = args.out.q_stride / (128 * kGroups);
  const int64_t span = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (span >= args.n_rows * spans) return;
  const int64_t row = span / spans;
  const int64_t first = span % spans * kGroups;  // group
  float x[4 * kGroups];
  for (int g = 0; g < kGroups; ++g) {
    const int64_t at = (first + g) * 128 + 4 * lane;
    const float4 four = at < args.n ? *reinterpret_cast<const float4*>(args.x + row * args.x_stride + at)
                                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    x[4 * g] = four.x;
    x[4 * g + 1] = four.y;
    x[4 * g + 2] = four.z;
    x[4 * g + 3] = four.w;
  }
  const Int8Block rounding(block_max<kBlock>(x));
  // Blocks of 32 have eight lanes each.
  const int64_t block = kBlock == 256 ? first / 2 : first * 4 + lane / 8;
  if (kBlock == 256 ? lane == 0 : lane % 8 == 0) args.out.d[row * args.out.d_stride + block] = rounding.d;
  if (kBlock == 256 && span % spans == 0) {  // what fills the row up to four
    const int64_t at = args.n / 256 + lane;
    if (at < args.out.d_stride) args.out.d[row * args.out.d_stride + at] = 0.0f;
  }
  for (int g = 0; g < kGroups; ++g) {
    int word = 0;
    int sum = 0;
    for (int i = 0; i < 4; ++i) {
      const int q = rounding.round(x[4 * g + i]);
      sum += q;
      word |= (q & 255) << (8 * i);
    }
    sum = gpu_group_sum<4>(sum);
    // Word 4 s + h of element order 16 h + 4 c: lane = 8 s + 4 h + c goes to 8 c + 2 s + h.
    const int place = lane % 4 * 8 + lane / 8 * 2 + lane / 4 % 2;
    reinterpret_cast<int*>(args.out.q + row * args.out.q_stride + (first + g) * 128)[place] = word;
    if (lane % 4 == 0) {
      args.out.sums16[row * args.out.sums_stride + (first + g) * 8 + lane / 4] = static_cast<int16_t>(sum);
    }
  }
}

}  // namespace

cudaError_t launch_quantize_rows(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, int64_t block,
                                 const Int8Rows& out, cudaStream_t stream) {
  if ((block != 32 && block != 256) || n % block != 0 || x_stride % 4 != 0) return cudaErrorInvalidValue;
  if (n_rows * n == 0) return cudaSuccess;
  const int64_t warps = n_rows * out.q_stride / (block == 256 ? 256 : 128);
  const dim3 grid(static_cast<unsigned>((warps + kWarps - 1) / kWarps));
  const QuantizeArgs args{x, x_stride, n_rows, n, out};
  return gpu_launch(block == 256 ? quantize_rows<256> : quantize_rows<32>, grid, dim3(kWarps * 32), 0, stream, args);
}

}  // namespace expertree::cuda
