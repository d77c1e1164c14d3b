// The NEON table for CPUs with dot products (FEAT_DotProd: most since Armv8.2, all of Apple's). CMakeLists.txt compiles
// this file, and no other, for them.
#include "cpp/kernels/kernel_table.h"
#include "cpp/kernels/neon/products.h"

namespace expertree::neon {

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

// noexcept, and without a call that might throw: an exception's path would export a weak symbol.
static KernelTable with_products(KernelTable table) noexcept {
  table.name = "dotprod";
  set_products(&table);
  return table;
}

const KernelTable* dotprod_kernels() {
  const KernelTable& neon = *neon_kernels();
  static const KernelTable table = with_products(neon);
  return &table;
}

#else

// Built for another processor.
const KernelTable* dotprod_kernels() { return nullptr; }

#endif

}  // namespace expertree::neon
