#include "cpp/profile/row_recorder.h"

#include <algorithm>

namespace expertree {

void RowRecorder::add(std::span<const int32_t> tokens) {
  ++n_passes_;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  routed_.resize(tokens_.size() * row_size(), int16_t{-1});
}

void RowRecorder::route(int64_t moe_layer, const int32_t* ids, int64_t n_rows) {
  const size_t first = tokens_.size() - static_cast<size_t>(n_rows);
  int16_t* out = routed_.data() + first * row_size() + static_cast<size_t>(moe_layer * shape_.n_used);
  for (int64_t r = 0; r < n_rows; ++r, out += row_size()) {
    std::transform(ids + r * shape_.n_used, ids + (r + 1) * shape_.n_used, out,
                   [](int32_t id) { return static_cast<int16_t>(id); });
  }
}

void RowRecorder::drop() {
  tokens_.resize(mark_);
  routed_.resize(mark_ * row_size());
}

}  // namespace expertree
