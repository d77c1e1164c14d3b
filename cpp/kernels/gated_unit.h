// The activation between an expert's two halves (canonical.h, C12).
#pragma once

#include <cstdint>

namespace expertree {

enum class GatedUnit : uint8_t { kSwiGlu, kGeGlu, kSwiGluOai, kReGlu };

}  // namespace expertree
