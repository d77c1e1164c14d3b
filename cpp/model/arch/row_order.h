// Rows of a loaded matrix in another order: files keep the parts of a head together that are run apart.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/tensor/weight.h"

namespace expertree {

// Row i becomes what row order[i] was. w must be memory of the model's own.
void reorder_rows(const WeightMatrix& w, const std::vector<int64_t>& order);

}  // namespace expertree
