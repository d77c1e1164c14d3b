// Memory of this process.
#pragma once

#include <cstdint>

namespace expertree {

// Bytes resident now; 0 when the system does not say.
uint64_t process_resident_bytes();

}  // namespace expertree
