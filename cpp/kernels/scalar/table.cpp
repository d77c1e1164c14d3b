#include "cpp/kernels/scalar/kernels.h"

namespace expertree {

const KernelTable* scalar_kernels() {
  static const KernelTable table = {
      .name = "scalar",
      .quantize_q8_32 = scalar::quantize_q8_32,
      .quantize_q8_256 = scalar::quantize_q8_256,
      .matmul_f32 = scalar::matmul_f32,
      .matmul_f16 = scalar::matmul_f16,
      .matmul_bf16 = scalar::matmul_bf16,
      .matmul_q4_0 = scalar::matmul_q4_0,
      .matmul_q4_1 = scalar::matmul_q4_1,
      .matmul_q5_0 = scalar::matmul_q5_0,
      .matmul_q5_1 = scalar::matmul_q5_1,
      .matmul_q8_0 = scalar::matmul_q8_0,
      .matmul_iq4_nl = scalar::matmul_iq4_nl,
      .matmul_mxfp4 = scalar::matmul_mxfp4,
      .matmul_q2_k = scalar::matmul_q2_k,
      .matmul_q3_k = scalar::matmul_q3_k,
      .matmul_q4_k = scalar::matmul_q4_k,
      .matmul_q5_k = scalar::matmul_q5_k,
      .matmul_q6_k = scalar::matmul_q6_k,
      .matmul_iq4_xs = scalar::matmul_iq4_xs,
      .matmul_iq1_s = scalar::matmul_iq1_s,
      .matmul_iq1_m = scalar::matmul_iq1_m,
      .matmul_iq2_xxs = scalar::matmul_iq2_xxs,
      .matmul_iq2_xs = scalar::matmul_iq2_xs,
      .matmul_iq2_s = scalar::matmul_iq2_s,
      .matmul_iq3_xxs = scalar::matmul_iq3_xxs,
      .matmul_iq3_s = scalar::matmul_iq3_s,
      .matmul_tq1_0 = scalar::matmul_tq1_0,
      .matmul_tq2_0 = scalar::matmul_tq2_0,
      .matmul_nvfp4 = scalar::matmul_nvfp4,
      .rms_norm = scalar::rms_norm,
      .softmax = scalar::softmax,
      .silu_mul = scalar::silu_mul,
      .gelu_mul = scalar::gelu_mul,
      .swiglu_oai = scalar::swiglu_oai,
      .relu_mul = scalar::relu_mul,
      .axpy = scalar::axpy,
      .exp_f32 = scalar::exp_f32,
      .log_f32 = scalar::log_f32,
      .attend = scalar::attend,
      .encode_f16 = scalar::encode_f16,
      .convolve = scalar::convolve,
      .delta_scan = scalar::delta_scan,
      .probe_read = scalar::probe_read,
      .probe_int8 = nullptr,
      .probe_int8_ops = 0,
  };
  return &table;
}

}  // namespace expertree
