#include "cpp/base/cpu_features.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace expertree {

#if defined(__x86_64__)

// The builtins also ask the operating system (XGETBV) whether it saves the wide registers.
bool cpu_has_avx2_fma() {
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return has;
}

bool cpu_has_avx512_vnni() {
  static const bool has = cpu_has_avx2_fma() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
                          __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni") &&
                          __builtin_cpu_supports("bmi2");
  return has;
}

bool cpu_has_neon() { return false; }
bool cpu_has_neon_dotprod() { return false; }

#else

bool cpu_has_avx2_fma() { return false; }
bool cpu_has_avx512_vnni() { return false; }
#if defined(__aarch64__)
bool cpu_has_neon() { return true; }
#else
bool cpu_has_neon() { return false; }
#endif

#if defined(__aarch64__) && defined(__APPLE__)
bool cpu_has_neon_dotprod() { return true; }
#elif defined(__aarch64__) && defined(__linux__)
bool cpu_has_neon_dotprod() {
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return has;
}
#else
bool cpu_has_neon_dotprod() { return false; }
#endif

#endif

}  // namespace expertree
