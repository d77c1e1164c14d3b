// The NEON kernels: any 64-bit Arm CPU. Same names and same bits as cpp/kernels/scalar; products of quantised weights,
// which also come in a form for CPUs with dot products, are in products.h.
#pragma once

#include "cpp/kernels/kernel_table.h"

namespace expertree::neon {

void quantize_q8_32(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16);
void quantize_q8_256(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16);

void matmul_f32(const MatmulArgs& args);
void matmul_f16(const MatmulArgs& args);
void matmul_bf16(const MatmulArgs& args);

void rms_norm(const float* x, const float* w, float eps, int64_t n, float* y);
void softmax(const float* x, int64_t n, float* p);
void silu_mul(const float* gate, const float* up, int64_t n, float* y);
void gelu_mul(const float* gate, const float* up, int64_t n, float* y);
void swiglu_oai(const float* gate, const float* up, int64_t n, float* y);
void relu_mul(const float* gate, const float* up, int64_t n, float* y);
void axpy(float scale, const float* x, int64_t n, float* acc);
void exp_f32(const float* x, int64_t n, float* y);
void log_f32(const float* x, int64_t n, float* y);
void attend(const AttendArgs* rows, int64_t n_rows);
void encode_f16(const float* x, int64_t n, uint16_t* y);
void convolve(const float* const* x, const float* w, int64_t n_taps, int64_t n, float* y);
void delta_scan(const DeltaScanArgs& args);
uint64_t probe_read(const std::byte* data, int64_t size_bytes);

}  // namespace expertree::neon
