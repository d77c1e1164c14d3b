// The part of the device seam (device.h) for a model's output head: rows of the residual stream in; out the best logits of
// each row, so that the others stay on the device.
#pragma once

#include <cstdint>

#include "cpp/backend/device_block.h"

namespace expertree {

constexpr int32_t kMostBest = 128;  // logits of a row that a call gives

// Where the head's outputs lie, in floats from its first. Ids and the flag are int32 in the place of floats.
struct DeviceBestOutputs {
  int64_t values;  // [n_rows][k], largest first, ties to the lower id
  int64_t ids;  // [n_rows][k]
  int64_t not_sound;  // one int32 for all rows: not 0 when a logit is NaN or +inf; the others are then of no use
  int64_t size;
};

struct DeviceHead {
  int32_t matrix = -1;  // in DeviceDensePlan; -1: the head is not the device's
  int64_t n_embd = 0;
  DeviceNorm norm;  // of the residual stream; read by make_dense
  bool layer_norm = false;
  float eps = 0.0f;
  float scale = 1.0f;  // of logits, then their soft cap (canonical.h, C13)
  float softcap = 0.0f;

  static DeviceBestOutputs outputs(int64_t n_rows, int64_t k) {
    return {0, n_rows * k, 2 * n_rows * k, 2 * n_rows * k + 1};
  }
};

}  // namespace expertree
