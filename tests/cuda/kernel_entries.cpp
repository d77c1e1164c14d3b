// Device memory and every launcher of cuda/kernels for Python's ctypes (tests/cuda/kernels.py).
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/kernels.h"

#define ENTRY extern "C" __attribute__((visibility("default")))

using namespace expertree::cuda;  // NOLINT: this file is all about it

using expertree::DType;

ENTRY int et_alloc(int64_t size_bytes, void** out) { return cudaMalloc(out, static_cast<size_t>(size_bytes)); }
ENTRY int et_free(void* p) { return cudaFree(p); }
ENTRY int et_to_device(void* device, const void* host, int64_t size_bytes) {
  // From pageable memory it may return before the last bytes are there, and kernels run on streams that do not wait.
  const cudaError_t error = cudaMemcpy(device, host, static_cast<size_t>(size_bytes), cudaMemcpyHostToDevice);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}
ENTRY int et_to_host(void* host, const void* device, int64_t size_bytes) {
  return cudaMemcpy(host, device, static_cast<size_t>(size_bytes), cudaMemcpyDeviceToHost);
}
ENTRY int et_stream(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, cudaStreamNonBlocking); }
ENTRY int et_end_stream(cudaStream_t stream) { return cudaStreamDestroy(stream); }
ENTRY int et_wait(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

ENTRY int et_is_packable(int dtype) { return is_packable(static_cast<DType>(dtype)); }
ENTRY void et_packed_layout(int dtype, int64_t rows, int64_t k, PackedLayout* out) {
  *out = packed_layout(static_cast<DType>(dtype), rows, k);
}
ENTRY void et_pack_on_host(int dtype, const std::byte* in, int64_t rows, int64_t k, std::byte* out) {
  pack_rows(static_cast<DType>(dtype), in, rows, k, out);
}
ENTRY int et_pack(int dtype, const void* in, int64_t rows, int64_t k, void* out, cudaStream_t stream) {
  return launch_pack_rows(static_cast<DType>(dtype), in, rows, k, out, stream);
}

ENTRY int64_t et_int8_rows_bytes(int64_t n_rows, int64_t n, int64_t block) { return int8_rows_bytes(n_rows, n, block); }
ENTRY void et_int8_rows(void* memory, int64_t n_rows, int64_t n, int64_t block, Int8Rows* out) {
  *out = int8_rows_at(memory, n_rows, n, block);
}
ENTRY int et_quantize(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, int64_t block, const Int8Rows* out,
                      cudaStream_t stream) {
  return launch_quantize_rows(x, x_stride, n_rows, n, block, *out, stream);
}

ENTRY int et_group_slots(const int32_t* chosen, int32_t n_rows, int32_t n_used, int32_t n_experts, int x_per_slot,
                         const void* const* expert_data, const ExpertGroupsOut* out, const int32_t* n_rows_device,
                         cudaStream_t stream) {
  return launch_group_slots(chosen, n_rows, n_used, n_experts, x_per_slot != 0, expert_data, *out, stream,
                            n_rows_device);
}
ENTRY int et_expert_hidden(const ExpertMatrix* gate, const ExpertMatrix* up, int unit, const ProductInput* gate_x,
                           const ProductInput* up_x, const ExpertGroups* groups, float* hidden, int64_t hidden_stride,
                           float* scratch, cudaStream_t stream) {
  return launch_expert_hidden(*gate, *up, static_cast<Unit>(unit), *gate_x, *up_x, *groups, hidden, hidden_stride,
                              scratch, stream);
}
ENTRY int et_expert_down(const ExpertMatrix* down, const ProductInput* x, const ExpertGroups* groups, float* out,
                         int64_t out_stride, cudaStream_t stream) {
  return launch_expert_down(*down, *x, *groups, out, out_stride, stream);
}
ENTRY int et_sum_experts(const float* out, const float* weights, int32_t n_rows, int32_t n_used, int64_t n,
                         const float* beside, float scale, float* y, cudaStream_t stream) {
  return launch_sum_experts(out, weights, n_rows, n_used, n, beside, scale, y, stream);
}
ENTRY int et_product(const DenseMatrix* w, const ProductInput* x, int32_t n_rows, float* y, int64_t y_stride,
                     cudaStream_t stream, int32_t dp4a_rows) {
  return launch_product(*w, *x, n_rows, y, y_stride, stream, dp4a_rows);
}
ENTRY int et_gated_product(const DenseMatrix* gate, const DenseMatrix* up, int unit, const ProductInput* x,
                           int32_t n_rows, float* y, int64_t y_stride, cudaStream_t stream, int32_t dp4a_rows) {
  return launch_gated_product(*gate, *up, static_cast<Unit>(unit), *x, n_rows, y, y_stride, stream, dp4a_rows);
}
ENTRY int et_gated_unit(int unit, const float* gate, const float* up, int64_t n, float* y, cudaStream_t stream) {
  return launch_gated_unit(static_cast<Unit>(unit), gate, up, n, y, stream);
}

ENTRY int et_rms_norm(const float* x, int64_t x_stride, const float* w, const float* bias, float eps, int64_t n_rows,
                      int64_t n, float* y, int64_t y_stride, int centred, cudaStream_t stream) {
  return launch_rms_norm(x, x_stride, w, bias, eps, n_rows, n, y, y_stride, stream, centred != 0);
}
ENTRY int et_residual_norm(const ResidualNorm* args, int64_t n_rows, int64_t n, const int32_t* n_rows_device,
                           cudaStream_t stream) {
  return launch_residual_norm(*args, n_rows, n, stream, n_rows_device);
}
ENTRY int et_rope(const Rope* args, int64_t n_rows, cudaStream_t stream) { return launch_rope(*args, n_rows, stream); }
ENTRY int64_t et_cell_stride(int dtype, int64_t head_dim) { return cell_stride(static_cast<DType>(dtype), head_dim); }
ENTRY int et_store_cells(const float* x, int64_t row_stride, int32_t n_heads, int32_t head_dim, const int32_t* cells,
                         int64_t n_rows, const CacheCells* to, const int32_t* n_rows_device, cudaStream_t stream) {
  return launch_store_cells(x, row_stride, n_heads, head_dim, cells, n_rows, *to, stream, n_rows_device);
}
ENTRY int et_copy_cells(const void* rows, int64_t row_bytes, int32_t n_heads, int64_t cell, int64_t n_rows,
                        const CacheCells* to, cudaStream_t stream) {
  return launch_copy_cells(rows, row_bytes, n_heads, cell, n_rows, *to, stream);
}
ENTRY int et_router(const Router* router, float* scores, int64_t n_rows, int32_t* ids, float* weights,
                    int32_t* not_finite, const int32_t* n_rows_device, cudaStream_t stream) {
  return launch_router(*router, scores, n_rows, ids, weights, not_finite, stream, n_rows_device);
}
ENTRY int et_weigh_inputs(const float* x, const float* weights, int64_t n_rows, int32_t n_used, int64_t n, float* y,
                          cudaStream_t stream) {
  return launch_weigh_inputs(x, weights, n_rows, n_used, n, y, stream);
}
ENTRY int et_sigmoid_gate(float* y, const float* gate, int gate_per_row, int64_t n_rows, int64_t n,
                          cudaStream_t stream) {
  return launch_sigmoid_gate(y, gate, gate_per_row != 0, n_rows, n, stream);
}
ENTRY int et_scale_softcap(float* x, int64_t n, float scale, float softcap, cudaStream_t stream) {
  return launch_scale_softcap(x, n, scale, softcap, stream);
}

ENTRY int et_clamp(float* x, int64_t n, float limit, cudaStream_t stream) { return launch_clamp(x, n, limit, stream); }

ENTRY int64_t et_attention_scratch_limit(const TreeAttention* args, int64_t n_rows) {
  return attention_scratch_limit(*args, n_rows);
}
ENTRY int64_t et_attention_scratch_bytes(const TreeAttention* args, int64_t n_rows) {
  return attention_scratch_bytes(*args, n_rows);
}
ENTRY int et_attention(const TreeAttention* args, int64_t n_rows, void* scratch, const int32_t* n_rows_device,
                       cudaStream_t stream) {
  return launch_attention(*args, n_rows, scratch, stream, n_rows_device);
}
ENTRY int64_t et_top_k_scratch_bytes(int64_t n_rows, int64_t n, int32_t k) { return top_k_scratch_bytes(n_rows, n, k); }
ENTRY int et_top_k(const float* logits, int64_t n_rows, int64_t n, int32_t k, float* values, int32_t* ids,
                   int32_t* not_sound, void* scratch, const int32_t* n_rows_device, cudaStream_t stream) {
  return launch_top_k(logits, n_rows, n, k, values, ids, not_sound, scratch, stream, n_rows_device);
}
