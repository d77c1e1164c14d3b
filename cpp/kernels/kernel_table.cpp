#include "cpp/kernels/kernel_table.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpp/base/cpu_features.h"
#include "cpp/base/error.h"
#include "cpp/kernels/canonical.h"
#include "cpp/kernels/kernel_names.h"
#include "cpp/tensor/dequantize.h"

namespace expertree {
namespace {

struct IsaRow {
  const char* name;
  const KernelTable* (*table)();
  bool (*runs_here)();
};

// Best first.
constexpr IsaRow kIsas[] = {
    {"avx512", avx512_kernels, cpu_has_avx512_vnni},
    {"avx2", avx2_kernels, cpu_has_avx2_fma},
    {"dotprod", neon::dotprod_kernels, cpu_has_neon_dotprod},  // most since Armv8.2, all of Apple's
    {"neon", neon_kernels, cpu_has_neon},
    {"scalar", scalar_kernels, [] { return true; }},
};

}  // namespace

const KernelTable* find_kernels(const char* name) {
  for (const IsaRow& isa : kIsas) {
    if (std::strcmp(isa.name, name) == 0) return isa.runs_here() ? isa.table() : nullptr;
  }
  return nullptr;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const IsaRow& isa : kIsas) {
    if (find_kernels(isa.name) != nullptr) names.emplace_back(isa.name);
  }
  return names;
}

const KernelTable& best_kernels() {
  for (const IsaRow& isa : kIsas) {
    if (isa.runs_here() && isa.table() != nullptr) return *isa.table();
  }
  return *scalar_kernels();
}

MatmulFn matmul_of(const KernelTable& table, DType dtype) {
  switch (dtype) {
    case DType::kF32: return table.matmul_f32;
    case DType::kF16: return table.matmul_f16;
    case DType::kBF16: return table.matmul_bf16;
    case DType::kQ4_0: return table.matmul_q4_0;
    case DType::kQ4_1: return table.matmul_q4_1;
    case DType::kQ5_0: return table.matmul_q5_0;
    case DType::kQ5_1: return table.matmul_q5_1;
    case DType::kQ8_0: return table.matmul_q8_0;
    case DType::kIQ4_NL: return table.matmul_iq4_nl;
    case DType::kMXFP4: return table.matmul_mxfp4;
    case DType::kQ2_K: return table.matmul_q2_k;
    case DType::kQ3_K: return table.matmul_q3_k;
    case DType::kQ4_K: return table.matmul_q4_k;
    case DType::kQ5_K: return table.matmul_q5_k;
    case DType::kQ6_K: return table.matmul_q6_k;
    case DType::kIQ4_XS: return table.matmul_iq4_xs;
    case DType::kIQ1_S: return table.matmul_iq1_s;
    case DType::kIQ1_M: return table.matmul_iq1_m;
    case DType::kIQ2_XXS: return table.matmul_iq2_xxs;
    case DType::kIQ2_XS: return table.matmul_iq2_xs;
    case DType::kIQ2_S: return table.matmul_iq2_s;
    case DType::kIQ3_XXS: return table.matmul_iq3_xxs;
    case DType::kIQ3_S: return table.matmul_iq3_s;
    case DType::kTQ1_0: return table.matmul_tq1_0;
    case DType::kTQ2_0: return table.matmul_tq2_0;
    case DType::kNVFP4: return table.matmul_nvfp4;
  }
  ET_CHECK(false);
  return nullptr;
}

void matmul_reference(DType dtype, const MatmulArgs& args) {
  std::vector<float> w(static_cast<size_t>(args.k));
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    dequantize_row(dtype, args.w + r * args.w_row_bytes, args.k, w.data());
    for (int64_t c = 0; c < args.n_columns; ++c) {
      const float* x = args.x_f32 + (args.x_rows ? args.x_rows[c] : c) * args.x_stride;
      float lane[kLanes] = {};
      for (int64_t i = 0; i < args.k; ++i)
        lane[i % kLanes] = std::fma(w[static_cast<size_t>(i)], x[i], lane[i % kLanes]);
      args.y[(args.y_rows ? args.y_rows[c] : c) * args.y_stride + r] = combine_lanes(lane);
    }
  }
}

}  // namespace expertree
