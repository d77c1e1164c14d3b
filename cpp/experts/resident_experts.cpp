#include "cpp/experts/resident_experts.h"

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kOverread = 128;  // kernels may load a whole vector at the end of the last row

uint64_t aligned(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t stride_of(const ExpertLayer::Projection& projection) {
  return aligned(static_cast<uint64_t>(row_bytes(projection.dtype, projection.k) * projection.rows));
}

}  // namespace

uint64_t ResidentExperts::bytes_needed(const ExpertIndex& index) {
  uint64_t bytes = 0;
  for (const ExpertLayer& layer : index) {
    for (const auto& projection : layer.projections) bytes += stride_of(projection) * projection.experts.size();
  }
  return bytes == 0 ? 0 : bytes + kOverread;
}

ResidentExperts::ResidentExperts(const ExpertIndex& index, const GgufReader& reader,
                                 const std::function<void(uint64_t)>& advance)
    : arena_(bytes_needed(index), "the experts") {
  std::byte* next = arena_.data();
  for (const ExpertLayer& layer : index) {
    for (const auto& projection : layer.projections) {
      const uint64_t stride = stride_of(projection);
      projections_.push_back({projection.dtype, projection.rows, projection.k, stride, next});
      for (const ExpertSlice& slice : projection.experts) {
        reader.read_tensor(reader.tensors()[static_cast<size_t>(slice.file_tensor)], slice.offset, slice.size_bytes,
                           next);
        advance(slice.size_bytes);
        next += stride;
      }
    }
  }
}

WeightMatrix ResidentExperts::weights(int64_t moe_layer, int64_t expert, ExpertProjection projection) const {
  const Projection& p = projections_[static_cast<size_t>(moe_layer * kNumProjections + projection)];
  return {p.dtype, p.data + static_cast<uint64_t>(expert) * p.stride_bytes, p.rows, p.k, row_bytes(p.dtype, p.k)};
}

}  // namespace expertree
