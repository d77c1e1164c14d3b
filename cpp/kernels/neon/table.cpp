#include "cpp/kernels/neon/kernels.h"
#include "cpp/kernels/neon/products.h"

namespace expertree {

#if defined(__aarch64__)

// noexcept: an exception's path would export a weak symbol.
static KernelTable make_neon_table() noexcept {
  KernelTable table = {};
  table.name = "neon";
  table.quantize_q8_32 = neon::quantize_q8_32;
  table.quantize_q8_256 = neon::quantize_q8_256;
  table.matmul_f32 = neon::matmul_f32;
  table.matmul_f16 = neon::matmul_f16;
  table.matmul_bf16 = neon::matmul_bf16;
  table.rms_norm = neon::rms_norm;
  table.softmax = neon::softmax;
  table.silu_mul = neon::silu_mul;
  table.gelu_mul = neon::gelu_mul;
  table.swiglu_oai = neon::swiglu_oai;
  table.relu_mul = neon::relu_mul;
  table.axpy = neon::axpy;
  table.exp_f32 = neon::exp_f32;
  table.log_f32 = neon::log_f32;
  table.attend = neon::attend;
  table.encode_f16 = neon::encode_f16;
  table.convolve = neon::convolve;
  table.delta_scan = neon::delta_scan;
  table.probe_read = neon::probe_read;
  neon::set_products(&table);
  return table;
}

const KernelTable* neon_kernels() {
  static const KernelTable table = make_neon_table();
  return &table;
}

#else

// Built for another processor.
const KernelTable* neon_kernels() { return nullptr; }

#endif

}  // namespace expertree
