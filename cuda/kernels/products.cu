// From matrices and groups to one format's kernels.
#include "cuda/kernels/file_blocks.cuh"
#include "cuda/kernels/product_run.h"

namespace expertree::cuda {
namespace {

MatrixArgs matrix_args(DType dtype, int64_t rows, int64_t k) {
  const PackedLayout layout = packed_layout(dtype, rows, k);
  MatrixArgs args{};
  args.scale = 1.0f;
  for (int p = 0; p < kNumPlanes; ++p) {
    args.plane_offset[p] = layout.offset[p];
    args.plane_row_bytes[p] = layout.row_bytes[p];
  }
  return args;
}

MatrixArgs matrix_args(const ExpertMatrix& w) {
  MatrixArgs args = matrix_args(w.dtype, w.rows, w.k);
  args.data = w.data;
  args.offset = w.offset;
  args.scales = w.scale;
  args.bias = w.bias;
  return args;
}

MatrixArgs matrix_args(const DenseMatrix& w) {
  MatrixArgs args = matrix_args(w.dtype, w.rows, w.k);
  args.alone = static_cast<const uint8_t*>(w.data);
  args.scale = w.scale;
  args.bias = w.bias;
  return args;
}

template <class Matrix>
bool is_valid(const Matrix& w, const ProductInput& x) {
  if (!is_packable(w.dtype) || w.k % dtype_info(w.dtype).block_size != 0) return false;
  return dtype_info(w.dtype).activation == ActivationFormat::kF32 ? x.f32 != nullptr : x.q.q != nullptr;
}

cudaError_t run_format(DType dtype, const ProductRun& run, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  if (dtype == DType::kF32) return run_product<DType::kF32>(run, stream);
  if (dtype == DType::kF16) return run_product<DType::kF16>(run, stream);
  if (dtype == DType::kBF16) return run_product<DType::kBF16>(run, stream);
  visit_quantised(dtype, [&]<DType kType>() { error = run_product<kType>(run, stream); });
  return error;
}

template <class Matrix>
ProductRun run_of(const Matrix& w, const ProductInput& x, float* y, int64_t y_stride) {
  ProductRun run{};
  run.args.w[0] = matrix_args(w);
  run.args.rows = static_cast<int32_t>(w.rows);
  run.args.k = static_cast<int32_t>(w.k);
  run.args.x = x;
  run.args.y = y;
  run.args.y_stride = y_stride;
  return run;
}

ProductRun expert_run(const ExpertMatrix& w, const ProductInput& x, const ExpertGroups& groups, float* y,
                      int64_t y_stride) {
  ProductRun run = run_of(w, x, y, y_stride);
  run.args.active = groups.active;
  run.args.n_active = groups.n_active;
  run.args.begin = groups.begin;
  run.max_groups = groups.max_groups;
  run.max_rows = groups.max_rows;
  run.dp4a_rows = groups.dp4a_rows;
  return run;
}

ProductRun dense_run(const DenseMatrix& w, const ProductInput& x, int32_t n_rows, float* y, int64_t y_stride,
                     int32_t dp4a_rows) {
  ProductRun run = run_of(w, x, y, y_stride);
  run.args.n_rows = n_rows;
  run.max_groups = 1;
  run.max_rows = n_rows;
  run.dp4a_rows = dp4a_rows;
  return run;
}

}  // namespace

cudaError_t launch_expert_hidden(const ExpertMatrix& gate, const ExpertMatrix& up, Unit unit,
                                 const ProductInput& gate_x, const ProductInput& up_x, const ExpertGroups& groups,
                                 float* hidden, int64_t hidden_stride, float* scratch, cudaStream_t stream) {
  if (!is_valid(gate, gate_x) || !is_valid(up, up_x) || gate.rows != up.rows || gate.k != up.k) {
    return cudaErrorInvalidValue;
  }
  ProductRun run = expert_run(gate, gate_x, groups, hidden, hidden_stride);
  run.args.x_row = groups.x_row;
  if (gate.dtype == up.dtype) {
    run.pair = true;
    run.args.w[1] = matrix_args(up);
    run.args.unit = unit;
    return run_format(gate.dtype, run, stream);
  }
  if (scratch == nullptr) return cudaErrorInvalidValue;
  ProductRun up_run = expert_run(up, up_x, groups, scratch, hidden_stride);
  up_run.args.x_row = groups.x_row;
  cudaError_t error = run_format(gate.dtype, run, stream);
  if (error == cudaSuccess) error = run_format(up.dtype, up_run, stream);
  if (error != cudaSuccess) return error;
  return launch_gated_unit(unit, hidden, scratch, groups.n_slots * hidden_stride, hidden, stream);
}

cudaError_t launch_expert_down(const ExpertMatrix& down, const ProductInput& x, const ExpertGroups& groups, float* out,
                               int64_t out_stride, cudaStream_t stream) {
  if (!is_valid(down, x)) return cudaErrorInvalidValue;
  ProductRun run = expert_run(down, x, groups, out, out_stride);
  run.args.y_row = groups.slot;
  return run_format(down.dtype, run, stream);
}

cudaError_t launch_product(const DenseMatrix& w, const ProductInput& x, int32_t n_rows, float* y, int64_t y_stride,
                           cudaStream_t stream, int32_t dp4a_rows) {
  if (!is_valid(w, x)) return cudaErrorInvalidValue;
  return run_format(w.dtype, dense_run(w, x, n_rows, y, y_stride, dp4a_rows), stream);
}

cudaError_t launch_gated_product(const DenseMatrix& gate, const DenseMatrix& up, Unit unit, const ProductInput& x,
                                 int32_t n_rows, float* y, int64_t y_stride, cudaStream_t stream, int32_t dp4a_rows) {
  if (!is_valid(gate, x) || gate.dtype != up.dtype || gate.rows != up.rows || gate.k != up.k) {
    return cudaErrorInvalidValue;
  }
  ProductRun run = dense_run(gate, x, n_rows, y, y_stride, dp4a_rows);
  run.pair = true;
  run.args.w[1] = matrix_args(up);
  run.args.unit = unit;
  return run_format(gate.dtype, run, stream);
}

}  // namespace expertree::cuda
