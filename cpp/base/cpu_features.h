// What this CPU and operating system can run, asked once.
#pragma once

namespace expertree {

bool cpu_has_avx2_fma();     // AVX2, FMA, F16C
bool cpu_has_avx512_vnni();  // AVX-512 F, BW, VL, DQ, VBMI, VNNI, and the above
bool cpu_has_neon();          // any 64-bit Arm CPU
bool cpu_has_neon_dotprod();  // and int8 dot products

}  // namespace expertree
