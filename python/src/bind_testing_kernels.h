// Parts of `expertree._core._testing` that deal with kernels.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "cpp/kernels/kernel_table.h"
#include "cpp/tensor/dtype.h"

namespace expertree {

void bind_testing_kernel_timing(nanobind::module_& m);  // called by bind_testing_kernels: time_matmul, machine limits

// By name; both throw kUnsupported for a name that does not exist or does not run here.
const KernelTable& testing_kernels(const std::string& isa);
const DTypeInfo& testing_dtype(const std::string& name);

}  // namespace expertree
