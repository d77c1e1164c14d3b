#include "cpp/profile/step_recorder.h"

#include <algorithm>

namespace expertree {

void StepRecorder::keep_event(int64_t now) {
  if (!events_.empty()) {
    ZoneEvent& last = events_.back();
    if (last.zone == place_.zone && last.layer == place_.layer && since_ns_ - last.end_ns < kLeastEventNs) {
      last.end_ns = now;
      return;
    }
  }
  events_.push_back({since_ns_, now, place_.zone, place_.layer});
}

void StepRecorder::add_rows(std::span<const int32_t> tokens) {
  ++n_passes_;
  n_last_rows_ = static_cast<int64_t>(tokens.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  routed_.resize(tokens_.size() * static_cast<size_t>(shape_.n_moe_layers * shape_.n_used), int16_t{-1});
}

void StepRecorder::route(int64_t moe_layer, const int32_t* ids) {
  const int64_t row_size = shape_.n_moe_layers * shape_.n_used;
  const int64_t first = static_cast<int64_t>(tokens_.size()) - n_last_rows_;
  int16_t* out = routed_.data() + first * row_size + moe_layer * shape_.n_used;
  for (int64_t r = 0; r < n_last_rows_; ++r) {
    std::transform(ids + r * shape_.n_used, ids + (r + 1) * shape_.n_used, out + r * row_size,
                   [](int32_t id) { return static_cast<int16_t>(id); });
  }
}

}  // namespace expertree
