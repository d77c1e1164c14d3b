// Rows of keys or values into cells: a block for a head of a row.
#include "cuda/kernels/cache_cells.cuh"
#include "cuda/kernels/int8_block.cuh"
#include "cuda/kernels/row_count.cuh"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kBlock = 32;
constexpr int kBlockWords = 17;  // of 16 bits: the scale, then the elements

struct StoreArgs {
  const float* x;
  int64_t row_stride;
  int32_t head_dim;
  const int32_t* cells;
  CacheCells to;
  const int32_t* n_rows_device;
};

template <DType kType>
__global__ void __launch_bounds__(kThreads) store_cells(StoreArgs args) {
  const int64_t head = blockIdx.x;
  const int64_t row = blockIdx.y;
  if (!is_row(row, args.n_rows_device)) return;
  const float* x = args.x + row * args.row_stride + head * args.head_dim;
  const int64_t begin = cell_begin(args.to, head, args.cells[row]);
  auto* y = static_cast<typename CellFormat<kType>::Element*>(args.to.elements) + begin;
  if constexpr (kType == DType::kQ8_0) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int at = static_cast<int>(threadIdx.x / 32) * kBlock; at < args.head_dim; at += kThreads) {
      const float value = at + lane < args.head_dim ? x[at + lane] : 0.0f;
      const Int8Block block(gpu_warp_max(__float_as_int(value) & 0x7fffffff));
      y[at + lane] = static_cast<int8_t>(block.round(value));
      if (lane == 0) args.to.scales[(begin + at) / kBlock] = __half_as_ushort(__float2half_rn(block.d));
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kThreads) {
      if constexpr (kType == DType::kF16) {
        y[i] = __half_as_ushort(__float2half_rn(x[i]));
      } else {
        y[i] = x[i];
      }
    }
  }
}

struct CopyArgs {
  const uint16_t* rows;
  int64_t n_words;  // of a row
  int64_t cell;
  int32_t element_bytes;
  CacheCells to;
};

__global__ void __launch_bounds__(kThreads) copy_cells(CopyArgs args) {
  const int64_t head = blockIdx.x;
  const int64_t row = blockIdx.y;
  const uint16_t* from = args.rows + (row * gridDim.x + head) * args.n_words;
  const int64_t begin = cell_begin(args.to, head, args.cell + row);
  uint16_t* y = static_cast<uint16_t*>(args.to.elements) + begin * args.element_bytes / 2;
  for (int64_t i = threadIdx.x; i < args.n_words; i += kThreads) {
    if (args.to.scales == nullptr) {
      y[i] = from[i];
    } else if (i % kBlockWords == 0) {
      args.to.scales[begin / kBlock + i / kBlockWords] = from[i];
    } else {
      y[i / kBlockWords * (kBlockWords - 1) + i % kBlockWords - 1] = from[i];
    }
  }
}

dim3 heads_and_rows(int32_t n_heads, int64_t n_rows) {
  return dim3(static_cast<unsigned>(n_heads), static_cast<unsigned>(n_rows));
}

}  // namespace

int64_t element_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : dtype == DType::kF16 ? 2 : 1; }

int64_t cell_stride(DType dtype, int64_t head_dim) {
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kQ8_0) return 0;
  const int64_t step = dtype == DType::kQ8_0 ? kBlock : 16 / element_bytes(dtype);
  return (head_dim + step - 1) / step * step;
}

cudaError_t launch_store_cells(const float* x, int64_t row_stride, int32_t n_heads, int32_t head_dim,
                               const int32_t* cells, int64_t n_rows, const CacheCells& to, cudaStream_t stream,
                               const int32_t* n_rows_device) {
  if (cell_stride(to.dtype, 1) == 0) return cudaErrorInvalidValue;
  if (n_rows * n_heads == 0) return cudaSuccess;
  const StoreArgs args{x, row_stride, head_dim, cells, to, n_rows_device};
  const auto kernel = to.dtype == DType::kF32   ? store_cells<DType::kF32>
                      : to.dtype == DType::kF16 ? store_cells<DType::kF16>
                                                : store_cells<DType::kQ8_0>;
  return gpu_launch(kernel, heads_and_rows(n_heads, n_rows), dim3(kThreads), 0, stream, args);
}

cudaError_t launch_copy_cells(const void* rows, int64_t row_bytes, int32_t n_heads, int64_t cell, int64_t n_rows,
                              const CacheCells& to, cudaStream_t stream) {
  if (n_rows * n_heads == 0) return cudaSuccess;
  const CopyArgs args{static_cast<const uint16_t*>(rows), row_bytes / 2, cell,
                      static_cast<int32_t>(element_bytes(to.dtype)), to};
  return gpu_launch(copy_cells, heads_and_rows(n_heads, n_rows), dim3(kThreads), 0, stream, args);
}

}  // namespace expertree::cuda
