#include "cpp/model/cache_types.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpp/base/error.h"
#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"

namespace expertree {
namespace {

struct NamedType {
  const char* name;
  DType type;
};
constexpr NamedType kCacheTypes[] = {{"f32", DType::kF32}, {"f16", DType::kF16}, {"q8_0", DType::kQ8_0}};

constexpr int64_t kBlock = sizeof(BlockQ8_0::qs);

bool all_finite(const Half* x, int64_t n) {
  uint32_t borrows = 0;  // of bits without the sign above those of the largest finite number
  for (int64_t i = 0; i < n; ++i) borrows |= 0x7bffu - (x[i] & 0x7fffu);
  return borrows < 0x80000000u;
}

// False: a scale is not finite.
bool write_q8_0(const KernelTable& kernels, const float* x, int64_t n, std::byte* row) {
  bool fits = true;
  for (int64_t begin = 0; begin < n; begin += kBlock, row += sizeof(BlockQ8_0)) {
    float part[kBlock] = {};
    std::copy_n(x + begin, std::min(kBlock, n - begin), part);
    BlockQ8_0 block;
    float d;
    int16_t sums16[kBlock / 16];
    kernels.quantize_q8_32(part, kBlock, block.qs, &d, sums16);
    const Half scale = float_to_half(d);
    block.d = scale;
    std::memcpy(row, &block, sizeof block);
    fits = fits && all_finite(&scale, 1);
  }
  return fits;
}

// What was infinite or NaN before is reported by the layer that it comes from.
void require_not_finite(const float* x, int64_t n, DType type) {
  float largest = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return;
    largest = std::max(largest, std::abs(x[i]));
  }
  throw Error(ErrorCode::kUnsupported, "a key or value of " + std::to_string(largest) + " does not fit a KV cache of " +
                                           cache_type_name(type) + "; keep it as f32 (--cache-type f32)");
}

}  // namespace

DType cache_type(const std::string& name) {
  for (const NamedType& known : kCacheTypes) {
    if (name == known.name) return known.type;
  }
  throw Error(ErrorCode::kInvalidRequest,
              "cache type '" + name.substr(0, 32) + "'; keys and values can be kept as f32, f16 or q8_0");
}

std::string cache_type_name(DType type) {
  for (const NamedType& known : kCacheTypes) {
    if (type == known.type) return known.name;
  }
  ET_CHECK(false);
  return {};
}

int64_t cache_row_bytes(DType type, int64_t head_dim) {
  const int64_t block = dtype_info(type).block_size;
  return row_bytes(type, (head_dim + block - 1) / block * block);
}

void write_cache_row(const KernelTable& kernels, const float* x, int64_t head_dim, DType type, std::byte* row) {
  bool fits = true;
  if (type == DType::kF16) {
    kernels.encode_f16(x, head_dim, reinterpret_cast<Half*>(row));
    fits = all_finite(reinterpret_cast<const Half*>(row), head_dim);
  } else if (type == DType::kQ8_0) {
    fits = write_q8_0(kernels, x, head_dim, row);
  } else {
    std::memcpy(row, x, static_cast<size_t>(head_dim) * sizeof(float));
  }
  if (!fits) require_not_finite(x, head_dim, type);
}

}  // namespace expertree
