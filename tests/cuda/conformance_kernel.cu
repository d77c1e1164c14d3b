// What every lane sees of every wrapper and intrinsic. The emulation and a GPU must give the same words: their hash is
// asserted on a CPU (test_emulation.py) and on a GPU (tools/gpu_check.sh).
#include "cuda/gpu/gpu.h"

namespace {

constexpr int kWordsPerLane = 40;

__device__ __forceinline__ void matrix_words(const int* in, int* out, int* tile) {
  const int lane = static_cast<int>(threadIdx.x);
  int a[4], b[2], d[4], r[4];
  for (int i = 0; i < 4; ++i) a[i] = in[lane * 16 + i];
  for (int i = 0; i < 4; ++i) d[i] = in[lane * 16 + 8 + i] >> 12;
  b[0] = in[lane * 16 + 4];
  b[1] = in[lane * 16 + 5];
  gpu_mma_m16n8k32_s8(d, a, b);
  for (int i = 0; i < 4; ++i) out[i] = d[i];
  for (int i = 0; i < 8; ++i) tile[lane * 8 + i] = in[lane * 8 + i];
  __syncwarp();
  gpu_ldmatrix_x4(r, tile + (lane % 16) * 8 + (lane / 16) * 4);
  for (int i = 0; i < 4; ++i) out[4 + i] = r[i];
}

__device__ __forceinline__ void warp_words(int v, const int* in, int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[0] = __shfl_xor_sync(~0u, v, 5);
  out[1] = __shfl_down_sync(~0u, v, 7);
  out[2] = __shfl_up_sync(~0u, v, 3);
  out[3] = __shfl_sync(~0u, v, 17);
  out[4] = __shfl_xor_sync(~0u, v, 6, 8);
  out[5] = __shfl_down_sync(~0u, v, 3, 16);
  out[6] = __shfl_up_sync(~0u, v, 2, 4);
  out[7] = __shfl_sync(~0u, v, 21, 8);
  out[8] = static_cast<int>(__ballot_sync(~0u, v & 1));
  out[9] = __any_sync(~0u, v == in[3]);
  out[10] = __all_sync(~0u, v != 0);
  if (lane < 16) {
    out[11] = __shfl_xor_sync(0xffffu, v, 1);
    out[12] = static_cast<int>(__ballot_sync(0xffffu, v & 2));
  } else {
    out[11] = __shfl_down_sync(0xffff0000u, v, 1);
    out[12] = 0;
  }
  const float f = static_cast<float>(v % 1000003) * 0.37f;
  out[13] = __float_as_int(gpu_warp_sum(f));
  out[14] = __float_as_int(gpu_warp_max(f));
  out[15] = __float_as_int(gpu_group_sum<16>(f));
  out[16] = __float_as_int(gpu_group_max<4>(f));
  out[17] = gpu_warp_sum(v);
  out[18] = gpu_group_max<8>(v);
}

__device__ __forceinline__ void arithmetic_words(int v, int w, int* out) {
  const unsigned uv = static_cast<unsigned>(v), uw = static_cast<unsigned>(w);
  const float f = static_cast<float>(v), g = static_cast<float>(w) * 0x1p-20f;
  out[0] = __dp4a(v, w, 7) + static_cast<int>(__dp4a(uv, uw, 9u));
  out[1] = static_cast<int>(__byte_perm(uv, uw, 0x9c53u) ^ __funnelshift_r(uv, uw, 11));
  out[2] = static_cast<int>(__vsubss4(uv, uw) ^ __vadd4(uv, uw) * 3u ^ __vsub4(uv, uw) * 5u ^ __vcmpeq4(uv, uw));
  out[3] = __popc(uv) + 64 * __ffs(v) + 4096 * __clz(v);
  const half2 h = __floats2half2_rn(__int_as_float(v), f * 0x1p-18f);
  out[4] = static_cast<int>(__half_as_ushort(h.x)) | static_cast<int>(__half_as_ushort(h.y)) << 16;
  out[5] = __float_as_int(__half2float(h.x));
  out[6] = __float2int_rn(f / 65536.f);
  out[7] = __float_as_int(__bfloat162float(__float2bfloat16_rn(f)));
  out[8] = __float_as_int(__fmaf_rn(f, g, -1.f));
  out[9] = __float_as_int(__fadd_rn(__fmul_rn(f, g), -1.f));
  out[10] = __float_as_int(__fdiv_rn(f, g));
  out[11] = __float_as_int(__fsqrt_rn(fabsf(f)));
  out[12] = static_cast<int>(__umulhi(uv, uw));
}

__global__ void conformance(const int* in, int* out) {
  GPU_SHARED(int, tile, 32 * 8);
  const int lane = static_cast<int>(threadIdx.x);
  int* mine = out + lane * kWordsPerLane;
  matrix_words(in, mine, tile);
  warp_words(in[lane], in, mine + 8);
  arithmetic_words(in[lane], in[lane + 32], mine + 27);
}

}  // namespace

// in: 512 words on the device; out: 32 lanes x 40 words.
cudaError_t launch_conformance(const int* in, int* out, cudaStream_t stream) {
  return gpu_launch(conformance, dim3(1), dim3(32), 0, stream, in, out);
}
