// How fast experts come from the disk, measured while they do.
#pragma once

#include <cstdint>

namespace expertree {

// Not thread-safe.
class ReadMeter {
 public:
  void started(int64_t now_us) {
    if (n_flight_++ == 0) busy_since_us_ = now_us;
  }
  void ended(int64_t now_us, uint64_t bytes) {
    window_bytes_ += bytes;
    total_bytes_ += bytes;
    if (--n_flight_ > 0 && window_bytes_ < kWindowBytes) return;
    const int64_t busy_us = now_us - busy_since_us_;
    busy_since_us_ = now_us;
    window_us_ += busy_us;
    total_us_ += busy_us;
    if (window_bytes_ < kWindowBytes || window_us_ <= 0) return;
    const double rate = static_cast<double>(window_bytes_) / static_cast<double>(window_us_);
    rate_ = rate_ == 0.0 ? rate : 0.75 * rate_ + 0.25 * rate;
    window_bytes_ = 0;
    window_us_ = 0;
  }

  // Bytes per second while anything was being read, recent reads foremost; 0: too little was read to say.
  double bytes_per_second() const { return rate_ * 1e6; }
  uint64_t total_bytes() const { return total_bytes_; }
  int64_t total_us() const { return total_us_; }

 private:
  static constexpr uint64_t kWindowBytes = uint64_t{32} << 20;

  int n_flight_ = 0;
  int64_t busy_since_us_ = 0;
  uint64_t window_bytes_ = 0;
  int64_t window_us_ = 0;
  double rate_ = 0.0;  // bytes per microsecond
  uint64_t total_bytes_ = 0;
  int64_t total_us_ = 0;
};

}  // namespace expertree
