// The AVX2 + FMA + F16C kernels. Same names and same bits as cpp/kernels/scalar.
#pragma once

#include "cpp/kernels/kernel_table.h"

namespace expertree::avx2 {

void quantize_q8_32(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16);
void quantize_q8_256(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16);

void matmul_f32(const MatmulArgs& args);
void matmul_f16(const MatmulArgs& args);
void matmul_bf16(const MatmulArgs& args);
void matmul_q4_0(const MatmulArgs& args);
void matmul_q4_1(const MatmulArgs& args);
void matmul_q5_0(const MatmulArgs& args);
void matmul_q5_1(const MatmulArgs& args);
void matmul_q8_0(const MatmulArgs& args);
void matmul_iq4_nl(const MatmulArgs& args);
void matmul_mxfp4(const MatmulArgs& args);
void matmul_q2_k(const MatmulArgs& args);
void matmul_q3_k(const MatmulArgs& args);
void matmul_q4_k(const MatmulArgs& args);
void matmul_q5_k(const MatmulArgs& args);
void matmul_q6_k(const MatmulArgs& args);
void matmul_iq4_xs(const MatmulArgs& args);
void matmul_iq1_s(const MatmulArgs& args);
void matmul_iq1_m(const MatmulArgs& args);
void matmul_iq2_xxs(const MatmulArgs& args);
void matmul_iq2_xs(const MatmulArgs& args);
void matmul_iq2_s(const MatmulArgs& args);
void matmul_iq3_xxs(const MatmulArgs& args);
void matmul_iq3_s(const MatmulArgs& args);
void matmul_tq1_0(const MatmulArgs& args);
void matmul_tq2_0(const MatmulArgs& args);
void matmul_nvfp4(const MatmulArgs& args);

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
uint64_t probe_int8(int64_t rounds);

}  // namespace expertree::avx2
