// Which kernels there are. Apart from kernel_table.h, so that no kernel's source meets strings.
#pragma once

#include <string>
#include <vector>

namespace expertree {

// What find_kernels() takes on this CPU with this build, best first.
std::vector<std::string> kernel_names();

}  // namespace expertree
