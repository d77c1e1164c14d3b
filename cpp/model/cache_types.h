// In what format keys and values are kept, and their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cpp/kernels/kernel_table.h"

namespace expertree {

// Of all layers. A latent model keeps no values, so that only `keys` counts there.
struct CacheTypes {
  DType keys = DType::kF32;
  DType values = DType::kF32;
};

// "f32", "f16" or "q8_0". Throws kInvalidRequest for any other name.
DType cache_type(const std::string& name);
std::string cache_type_name(DType type);

// Bytes of one head of head_dim elements: whole blocks, the last filled up.
int64_t cache_row_bytes(DType type, int64_t head_dim);

// x, float [head_dim], in the format `type` (canonical.h, C14): the one place where a key or a value is rounded. Throws
// kUnsupported when it is finite and too large for the format.
void write_cache_row(const KernelTable& kernels, const float* x, int64_t head_dim, DType type, std::byte* row);

}  // namespace expertree
