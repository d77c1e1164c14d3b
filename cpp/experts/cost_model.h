// What experts cost here, measured while the model runs: the prices of the choice between reading, running and waiting.
#pragma once

#include <algorithm>
#include <cstdint>

namespace expertree {

// Seconds; 0 where nothing was measured yet. Kept between runs per machine and model.
struct ExpertCosts {
  double read_bytes_per_second = 0.0;  // from disk, at the depth in use
  double run_base_seconds = 0.0;  // one expert in memory, whatever the rows: its weights are read once
  double run_row_seconds = 0.0;  // and for each row
  double step_seconds = 0.0;  // one token through the whole model, waiting for reads left out
  double link_bytes_per_second = 0.0;  // to the device's memory
  double device_base_seconds = 0.0;  // as run_base_seconds, of an expert on the device
  double device_row_seconds = 0.0;

  double read_seconds(double bytes) const { return read_bytes_per_second > 0.0 ? bytes / read_bytes_per_second : 0.0; }
  double run_seconds(int64_t n_rows) const {
    return n_rows <= 0 ? 0.0 : run_base_seconds + run_row_seconds * static_cast<double>(n_rows);
  }
  double device_seconds(int64_t n_rows) const {
    return n_rows <= 0 ? 0.0 : device_base_seconds + device_row_seconds * static_cast<double>(n_rows);
  }
};

// Fits seconds = base * experts + per_row * rows by least squares, old runs fading. Not thread-safe.
class RunCostFit {
 public:
  void add(int64_t n_experts, int64_t n_rows, double seconds) {
    // Relative errors count: a long prefill must not drown a thousand single tokens.
    const double scale = 1.0 / std::max(seconds, 1e-7);
    const double e = static_cast<double>(n_experts) * scale;
    const double r = static_cast<double>(n_rows) * scale;
    ee_ = kKeep * ee_ + e * e;
    er_ = kKeep * er_ + e * r;
    rr_ = kKeep * rr_ + r * r;
    et_ = kKeep * et_ + e;
    rt_ = kKeep * rt_ + r;
  }

  void get(double* base, double* per_row) const {
    const double determinant = ee_ * rr_ - er_ * er_;
    *base = ee_ > 0.0 ? et_ / ee_ : 0.0;  // rows never varied: all of it
    *per_row = 0.0;
    if (determinant <= 1e-6 * ee_ * rr_) return;
    const double fitted = (ee_ * rt_ - er_ * et_) / determinant;
    *per_row = std::clamp(fitted, 0.0, rt_ / rr_);
    *base = std::max(0.0, (et_ - er_ * *per_row) / ee_);
  }

 private:
  static constexpr double kKeep = 0.9995;  // some thousand runs
  double ee_ = 0.0, er_ = 0.0, rr_ = 0.0, et_ = 0.0, rt_ = 0.0;
};

}  // namespace expertree
