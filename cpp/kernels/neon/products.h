// The products of quantised weights, and the probe of what they can reach. Whoever includes this gets a copy for the
// instructions that it is compiled for: table.cpp for every 64-bit Arm CPU, dotprod.cpp for those with dot products.
#pragma once

#if defined(__aarch64__)

#include "cpp/kernels/neon/decoded_q256.h"
#include "cpp/kernels/neon/formats_q256.h"
#include "cpp/kernels/neon/kernel_q32.h"

namespace expertree::neon {

constexpr int64_t kProbeOps = 256;  // of a round: eight chains, 16 products and sums each

static uint64_t probe_int8(int64_t rounds) {
  int32x4_t sum[8];
  // The compiler must not see that the chains are alike.
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    sum[i] = vdupq_n_s32(0);
    asm volatile("" : "+w"(sum[i]));
  }
  int8x16_t a = vdupq_n_s8(3);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      asm volatile("" : "+w"(a));  // else the products would be made once for all chains
      sum[i] = dot_16(sum[i], a, a);
    }
  }
  int32x4_t all = sum[0];
  for (int i = 1; i < 8; ++i) all = vaddq_s32(all, sum[i]);
  return static_cast<uint32_t>(vaddvq_s32(all));
}

// Puts them into a table.
static void set_products(KernelTable* table) {
  table->matmul_q4_0 = for_each_group<Kernel32<FormatQ4_0>>;
  table->matmul_q4_1 = for_each_group<Kernel32<FormatQ4_1>>;
  table->matmul_q5_0 = for_each_group<Kernel32<FormatQ5_0>>;
  table->matmul_q5_1 = for_each_group<Kernel32<FormatQ5_1>>;
  table->matmul_q8_0 = for_each_group<Kernel32<FormatQ8_0>>;
  table->matmul_iq4_nl = for_each_group<Kernel32<FormatIQ4_NL>>;
  table->matmul_mxfp4 = for_each_group<Kernel32<FormatMXFP4>>;
  table->matmul_nvfp4 = for_each_group<KernelNVFP4>;
  table->matmul_q2_k = for_each_group<Kernel256<FormatQ2_K>>;
  table->matmul_q3_k = for_each_group<Kernel256<FormatQ3_K>>;
  table->matmul_q4_k = for_each_group<Kernel256<FormatQ4_K>>;
  table->matmul_q5_k = for_each_group<Kernel256<FormatQ5_K>>;
  table->matmul_q6_k = for_each_group<Kernel256<FormatQ6_K>>;
  table->matmul_iq4_xs = for_each_group<Kernel256<FormatIQ4_XS>>;
  table->matmul_iq1_s = for_each_group<Kernel256<Decoded<BlockIQ1_S>>>;
  table->matmul_iq1_m = for_each_group<Kernel256<Decoded<BlockIQ1_M>>>;
  table->matmul_iq2_xxs = for_each_group<Kernel256<Decoded<BlockIQ2_XXS>>>;
  table->matmul_iq2_xs = for_each_group<Kernel256<Decoded<BlockIQ2_XS>>>;
  table->matmul_iq2_s = for_each_group<Kernel256<Decoded<BlockIQ2_S>>>;
  table->matmul_iq3_xxs = for_each_group<Kernel256<Decoded<BlockIQ3_XXS>>>;
  table->matmul_iq3_s = for_each_group<Kernel256<Decoded<BlockIQ3_S>>>;
  table->matmul_tq1_0 = for_each_group<Kernel256<Decoded<BlockTQ1_0>>>;
  table->matmul_tq2_0 = for_each_group<Kernel256<Decoded<BlockTQ2_0>>>;
  table->probe_int8 = probe_int8;
  table->probe_int8_ops = kProbeOps;
}

}  // namespace expertree::neon

#endif
