#include "cpp/backend/activations.h"

#include "cpp/base/scratch.h"

namespace expertree {

void Activations::reset(int64_t rows, int64_t n) {
  rows_ = rows;
  n_ = n;
  // 16 spare floats: kernels may load a whole vector at the end of the last row.
  const size_t need = static_cast<size_t>(rows * n + 16);
  fit(&f32_, need);
  q8_32_.valid = false;
  q8_256_.valid = false;
}

}  // namespace expertree
