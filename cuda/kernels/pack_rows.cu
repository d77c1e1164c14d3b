// Weights from the file's layout to packed planes: a thread for each lane of a group.
#include "cuda/kernels/pack_rows.cuh"

#include "cuda/gpu/gpu.h"
#include "cuda/kernels/expert_kernels.h"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 128;

struct PackArgs {
  const uint8_t* in;
  uint8_t* out;
  int64_t row_bytes;  // of the file
  PackedLayout layout;
};

template <DType kType>
__global__ void __launch_bounds__(kThreads) pack_quantised(PackArgs args) {
  const PackedLayout& layout = args.layout;
  const int64_t lanes = (layout.k + kGroup - 1) / kGroup * 4;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= layout.rows * lanes) return;
  const int64_t row = at / lanes;
  uint8_t* planes[kNumPlanes];
  for (int p = 0; p < kNumPlanes; ++p) planes[p] = args.out + layout.offset[p] + row * layout.row_bytes[p];
  pack_lane<kType>(args.in + row * args.row_bytes, layout.k, at % lanes / 4, static_cast<int>(at % 4), planes);
}

template <int kElementBytes>
__global__ void __launch_bounds__(kThreads) pack_floats(PackArgs args) {
  const int64_t pieces = args.layout.row_bytes[kCodes] / 16;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= args.layout.rows * pieces) return;
  const int64_t row = at / pieces;
  const int64_t piece = at % pieces;
  pack_piece<kElementBytes>(args.in + row * args.row_bytes, args.layout.k, piece / 16, static_cast<int>(piece % 16),
                            args.out + args.layout.offset[kCodes] + row * args.layout.row_bytes[kCodes]);
}

dim3 grid_for(int64_t threads) { return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)); }

}  // namespace

cudaError_t launch_pack_rows(DType dtype, const void* rows_in_file_layout, int64_t rows, int64_t k, void* packed,
                             cudaStream_t stream) {
  return launch_pack_some_rows(dtype, rows_in_file_layout, 0, rows, rows, k, packed, stream);
}

cudaError_t launch_pack_some_rows(DType dtype, const void* rows_in_file_layout, int64_t first, int64_t n, int64_t rows,
                                  int64_t k, void* packed, cudaStream_t stream) {
  if (!is_packable(dtype) || k % dtype_info(dtype).block_size != 0 || first < 0 || first + n > rows) {
    return cudaErrorInvalidValue;
  }
  if (n * k == 0) return cudaSuccess;
  PackArgs args{static_cast<const uint8_t*>(rows_in_file_layout), static_cast<uint8_t*>(packed), row_bytes(dtype, k),
                packed_layout(dtype, rows, k)};
  args.layout.rows = n;
  for (int p = 0; p < kNumPlanes; ++p) args.layout.offset[p] += first * args.layout.row_bytes[p];
  const int64_t pieces = n * args.layout.row_bytes[kCodes] / 16;
  if (dtype == DType::kF32) return gpu_launch(pack_floats<4>, grid_for(pieces), kThreads, 0, stream, args);
  if (dtype == DType::kF16 || dtype == DType::kBF16) {
    return gpu_launch(pack_floats<2>, grid_for(pieces), kThreads, 0, stream, args);
  }
  cudaError_t error = cudaSuccess;
  const dim3 grid = grid_for(n * ((k + kGroup - 1) / kGroup) * 4);
  visit_quantised(dtype,
                  [&]<DType kType>() { error = gpu_launch(pack_quantised<kType>, grid, kThreads, 0, stream, args); });
  return error;
}

void pack_rows(DType dtype, const std::byte* rows_in_file_layout, int64_t rows, int64_t k, std::byte* packed) {
  const PackedLayout layout = packed_layout(dtype, rows, k);
  const auto* in = reinterpret_cast<const uint8_t*>(rows_in_file_layout);
  auto* out = reinterpret_cast<uint8_t*>(packed);
  for (int64_t row = 0; row < rows; ++row, in += row_bytes(dtype, k)) {
    uint8_t* planes[kNumPlanes];
    for (int p = 0; p < kNumPlanes; ++p) planes[p] = out + layout.offset[p] + row * layout.row_bytes[p];
    const bool quantised = visit_quantised(dtype, [&]<DType kType>() {
      for (int64_t lane = 0; lane < (k + kGroup - 1) / kGroup * 4; ++lane) {
        pack_lane<kType>(in, k, lane / 4, static_cast<int>(lane % 4), planes);
      }
    });
    if (quantised) continue;
    for (int64_t piece = 0; piece < layout.row_bytes[kCodes] / 16; ++piece) {
      if (dtype == DType::kF32) {
        pack_piece<4>(in, k, piece / 16, static_cast<int>(piece % 16), planes[kCodes]);
      } else {
        pack_piece<2>(in, k, piece / 16, static_cast<int>(piece % 16), planes[kCodes]);
      }
    }
  }
}

}  // namespace expertree::cuda
