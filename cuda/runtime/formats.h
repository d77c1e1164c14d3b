// What the core's types are called in the kernels' launchers.
#pragma once

#include <cstdint>

#include "cpp/kernels/gated_unit.h"
#include "cpp/tensor/dtype.h"
#include "cuda/kernels/expert_kernels.h"

namespace expertree::cuda {

inline Unit unit_of(GatedUnit unit) {
  switch (unit) {
    case GatedUnit::kSwiGlu: return Unit::kSwiGlu;
    case GatedUnit::kGeGlu: return Unit::kGeGlu;
    case GatedUnit::kSwiGluOai: return Unit::kSwiGluOai;
    case GatedUnit::kReGlu: return Unit::kReGlu;
  }
  return Unit::kSwiGlu;
}

// The int8 forms of rows.
constexpr int kRowForms = 2;
constexpr int64_t kFormBlocks[kRowForms] = {32, 256};

// Of the rows that a matrix is multiplied with; -1: floats.
inline int row_form(DType dtype) {
  switch (dtype_info(dtype).activation) {
    case ActivationFormat::kF32: return -1;
    case ActivationFormat::kQ8_32: return 0;
    case ActivationFormat::kQ8_256: return 1;
  }
  return -1;
}

}  // namespace expertree::cuda
