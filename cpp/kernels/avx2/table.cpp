#include "cpp/kernels/avx2/kernels.h"

namespace expertree {

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

const KernelTable* avx2_kernels() {
  static const KernelTable table = {
      .name = "avx2",
      .quantize_q8_32 = avx2::quantize_q8_32,
      .quantize_q8_256 = avx2::quantize_q8_256,
      .matmul_f32 = avx2::matmul_f32,
      .matmul_f16 = avx2::matmul_f16,
      .matmul_bf16 = avx2::matmul_bf16,
      .matmul_q4_0 = avx2::matmul_q4_0,
      .matmul_q4_1 = avx2::matmul_q4_1,
      .matmul_q5_0 = avx2::matmul_q5_0,
      .matmul_q5_1 = avx2::matmul_q5_1,
      .matmul_q8_0 = avx2::matmul_q8_0,
      .matmul_iq4_nl = avx2::matmul_iq4_nl,
      .matmul_mxfp4 = avx2::matmul_mxfp4,
      .matmul_q2_k = avx2::matmul_q2_k,
      .matmul_q3_k = avx2::matmul_q3_k,
      .matmul_q4_k = avx2::matmul_q4_k,
      .matmul_q5_k = avx2::matmul_q5_k,
      .matmul_q6_k = avx2::matmul_q6_k,
      .matmul_iq4_xs = avx2::matmul_iq4_xs,
      .matmul_iq1_s = avx2::matmul_iq1_s,
      .matmul_iq1_m = avx2::matmul_iq1_m,
      .matmul_iq2_xxs = avx2::matmul_iq2_xxs,
      .matmul_iq2_xs = avx2::matmul_iq2_xs,
      .matmul_iq2_s = avx2::matmul_iq2_s,
      .matmul_iq3_xxs = avx2::matmul_iq3_xxs,
      .matmul_iq3_s = avx2::matmul_iq3_s,
      .matmul_tq1_0 = avx2::matmul_tq1_0,
      .matmul_tq2_0 = avx2::matmul_tq2_0,
      .matmul_nvfp4 = avx2::matmul_nvfp4,
      .rms_norm = avx2::rms_norm,
      .softmax = avx2::softmax,
      .silu_mul = avx2::silu_mul,
      .gelu_mul = avx2::gelu_mul,
      .swiglu_oai = avx2::swiglu_oai,
      .relu_mul = avx2::relu_mul,
      .axpy = avx2::axpy,
      .exp_f32 = avx2::exp_f32,
      .log_f32 = avx2::log_f32,
      .attend = avx2::attend,
      .encode_f16 = avx2::encode_f16,
      .convolve = avx2::convolve,
      .delta_scan = avx2::delta_scan,
      .probe_read = avx2::probe_read,
      .probe_int8 = avx2::probe_int8,
      .probe_int8_ops = 2048,
  };
  return &table;
}

#else

// Built for another processor, or by a compiler without these instructions.
const KernelTable* avx2_kernels() { return nullptr; }

#endif

}  // namespace expertree
