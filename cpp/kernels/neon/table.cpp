#include "cpp/kernels/kernel_table.h"

namespace expertree {

// Not written yet: on Arm the scalar kernels run.
const KernelTable* neon_kernels() { return nullptr; }

}  // namespace expertree
