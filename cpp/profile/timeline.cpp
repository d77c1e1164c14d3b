#include "cpp/profile/timeline.h"

namespace expertree {

void Timeline::keep_event(int64_t now) {
  if (!events_.empty()) {
    ZoneEvent& last = events_.back();
    if (last.zone == place_.zone && last.layer == place_.layer && since_ns_ - last.end_ns < kLeastEventNs) {
      last.end_ns = now;
      return;
    }
  }
  events_.push_back({since_ns_, now, place_.zone, place_.layer});
}

}  // namespace expertree
