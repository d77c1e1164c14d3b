#include "cpp/kernels/avx512/kernels.h"
#include "cpp/kernels/avx512/vector.h"

namespace expertree {

#if defined(EXPERTREE_AVX512)

namespace {

constexpr KernelTable kTable = {
    .name = "avx512",
    .quantize_q8_32 = avx512::quantize_q8_32,
    .quantize_q8_256 = avx512::quantize_q8_256,
    .matmul_f32 = avx512::matmul_f32,
    .matmul_f16 = avx512::matmul_f16,
    .matmul_bf16 = avx512::matmul_bf16,
    .matmul_q4_0 = avx512::matmul_q4_0,
    .matmul_q4_1 = avx512::matmul_q4_1,
    .matmul_q5_0 = avx512::matmul_q5_0,
    .matmul_q5_1 = avx512::matmul_q5_1,
    .matmul_q8_0 = avx512::matmul_q8_0,
    .matmul_iq4_nl = avx512::matmul_iq4_nl,
    .matmul_mxfp4 = avx512::matmul_mxfp4,
    .matmul_q2_k = avx512::matmul_q2_k,
    .matmul_q3_k = avx512::matmul_q3_k,
    .matmul_q4_k = avx512::matmul_q4_k,
    .matmul_q5_k = avx512::matmul_q5_k,
    .matmul_q6_k = avx512::matmul_q6_k,
    .matmul_iq4_xs = avx512::matmul_iq4_xs,
    .matmul_iq1_s = avx512::matmul_iq1_s,
    .matmul_iq1_m = avx512::matmul_iq1_m,
    .matmul_iq2_xxs = avx512::matmul_iq2_xxs,
    .matmul_iq2_xs = avx512::matmul_iq2_xs,
    .matmul_iq2_s = avx512::matmul_iq2_s,
    .matmul_iq3_xxs = avx512::matmul_iq3_xxs,
    .matmul_iq3_s = avx512::matmul_iq3_s,
    .matmul_tq1_0 = avx512::matmul_tq1_0,
    .matmul_tq2_0 = avx512::matmul_tq2_0,
    .matmul_nvfp4 = avx512::matmul_nvfp4,
    .rms_norm = avx512::rms_norm,
    .softmax = avx512::softmax,
    .silu_mul = avx512::silu_mul,
    .gelu_mul = avx512::gelu_mul,
    .swiglu_oai = avx512::swiglu_oai,
    .relu_mul = avx512::relu_mul,
    .axpy = avx512::axpy,
    .exp_f32 = avx512::exp_f32,
    .log_f32 = avx512::log_f32,
    .attend = avx512::attend,
    .encode_f16 = avx512::encode_f16,
    .convolve = avx512::convolve,
    .delta_scan = avx512::delta_scan,
    .probe_read = avx512::probe_read,
    .probe_int8 = avx512::probe_int8,
    .probe_int8_ops = 2048,
};

}  // namespace

const KernelTable* avx512_kernels() { return &kTable; }

#else

// This build's compiler lacks the instructions.
const KernelTable* avx512_kernels() { return nullptr; }

#endif

}  // namespace expertree
