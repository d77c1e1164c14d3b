// One call as it runs: where its thread's time goes. Written by that thread alone, without locks. Whoever is given none
// (nullptr) pays for a comparison.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/profile/profile_shape.h"
#include "cpp/profile/zone.h"

namespace expertree {

struct ZoneEvent {
  int64_t begin_ns;
  int64_t end_ns;
  Zone zone;
  int16_t layer;  // -1: none
};

class Timeline {
 public:
  struct Place {
    Zone zone;
    int16_t layer;
  };

  // Begins now, in Zone::kOther.
  explicit Timeline(const ProfileShape& shape)
      : layer_ns_(static_cast<size_t>(shape.n_layers) * kNumZones, 0), begin_ns_(now_ns()), since_ns_(begin_ns_) {}

  // Goes there and tells what was left.
  Place enter(Place place) {
    const int64_t now = now_ns();
    account(now);
    const Place before = place_;
    place_ = place;
    since_ns_ = now;
    return before;
  }
  void end() {
    end_ns_ = now_ns();
    account(end_ns_);
    since_ns_ = end_ns_;
  }

  int64_t begin_ns() const { return begin_ns_; }
  int64_t end_ns() const { return end_ns_; }
  const std::array<int64_t, kNumZones>& zone_ns() const { return zone_ns_; }
  const std::vector<int64_t>& layer_ns() const { return layer_ns_; }  // [n_layers][kNumZones]
  const std::vector<ZoneEvent>& events() const { return events_; }

 private:
  void account(int64_t now) {
    const int64_t spent = now - since_ns_;
    zone_ns_[static_cast<size_t>(place_.zone)] += spent;
    if (place_.layer >= 0) {
      layer_ns_[static_cast<size_t>(place_.layer) * kNumZones + static_cast<size_t>(place_.zone)] += spent;
    }
    if (spent >= kLeastEventNs) keep_event(now);
  }
  void keep_event(int64_t now);

  static constexpr int64_t kLeastEventNs = 1000;  // shorter ones count but are not drawn

  std::vector<int64_t> layer_ns_;
  int64_t begin_ns_;
  int64_t end_ns_ = 0;
  int64_t since_ns_;
  Place place_{Zone::kOther, -1};
  std::array<int64_t, kNumZones> zone_ns_{};
  std::vector<ZoneEvent> events_;
};

// In a zone from here to the end of the block; zones inside take their time away from it.
class ZoneScope {
 public:
  ZoneScope(Timeline* timeline, Zone zone, int64_t layer = -1) : timeline_(timeline) {
    if (timeline_ != nullptr) before_ = timeline_->enter({zone, static_cast<int16_t>(layer)});
  }
  ~ZoneScope() {
    if (timeline_ != nullptr) timeline_->enter(before_);
  }
  ZoneScope(const ZoneScope&) = delete;
  ZoneScope& operator=(const ZoneScope&) = delete;

 private:
  Timeline* timeline_;
  Timeline::Place before_{Zone::kOther, -1};
};

}  // namespace expertree
