// The part of the device seam (device.h) for a layer from its attention on: rows of the residual stream in; out again what
// comes behind attention and, where the device has the rest too, behind a dense feed-forward part, or what experts are
// chosen by. Norms and sums are those of canonical.h and of cpp/model.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/backend/device_attention.h"

namespace expertree {

struct DeviceNorm {
  const float* weight = nullptr;  // [n_embd]; nullptr: 1
  const float* bias = nullptr;  // [n_embd] or none
};

enum class DeviceGating : int32_t { kSoftmax, kSigmoid, kSoftmaxOfChosen, kSigmoidOfChosen };

struct DeviceRouter {
  int32_t matrix = -1;  // in DeviceDensePlan; -1: the device does not choose
  bool own_norm = false;  // of the residual stream; else it reads what experts read
  const float* norm = nullptr;  // then: [n_embd]
  const float* selection_bias = nullptr;  // [n_experts] or none
  int32_t n_experts = 0;
  int32_t n_used = 0;
  DeviceGating gating = DeviceGating::kSoftmax;
  int32_t n_groups = 1;
  int32_t n_groups_used = 1;
  bool renormalize = false;
  float weights_scale = 1.0f;
};

// A layer's experts behind its router, and what runs beside them, where all of them are there (DeviceExperts::publish).
struct DeviceMixture {
  int32_t layer = -1;  // in DeviceExpertsPlan; -1: a call of blocks cannot run them
  int32_t gate = -1, up = -1, down = -1;  // in DeviceDensePlan, of what is beside them; -1: nothing
  float scale = 1.0f;  // of the sum of all
};

// Outputs of a call with blocks begin with that many floats. The first is an int32: not 0 when the residual stream held
// what is not a finite number behind a block with a feed-forward part or a mixture.
constexpr int64_t kDeviceCallHead = 4;

// Where a block's outputs lie, in floats from its first, each from a multiple of 16 bytes on: [n_rows][..]. Ids are int32
// in the place of floats.
struct DeviceBlockOutputs {
  int64_t normed;  // [n_embd], what the feed-forward part reads; not where the device has that
  int64_t keys;  // [k_width], before they were rounded into their cells
  int64_t values;  // [v_width]
  int64_t scores;  // [n_experts], gated; this and the rest with a router alone
  int64_t weights;  // [n_used], best first
  int64_t ids;  // [n_used]
  int64_t not_finite;  // one int32 for all rows: not 0 when a score was not a finite number
  int64_t size;
};

// Of one layer. Matrices are numbers in DeviceDensePlan; arrays are read by make_dense.
struct DeviceBlock {
  DeviceAttentionLayer attention;
  int64_t n_embd = 0;
  float eps = 0.0f;  // of all norms
  bool layer_norm = false;  // that attention and the feed-forward part read: of x less its mean
  float residual_scale = 1.0f;  // of what is added to the residual stream
  DeviceNorm attention_norm;
  const float* post_attention_norm = nullptr;  // [n_embd] or none
  DeviceNorm feed_forward_norm;
  int32_t gate = -1, up = -1, down = -1;  // -1: the feed-forward part is not the device's
  const float* post_feed_forward_norm = nullptr;  // [n_embd] or none
  float output_scale = 1.0f;  // of the residual stream behind the feed-forward part or the mixture
  DeviceRouter router;
  DeviceMixture mixture;

  bool has_feed_forward() const { return down >= 0; }
  bool has_router() const { return router.matrix >= 0; }
  bool has_mixture() const { return mixture.layer >= 0; }
  DeviceBlockOutputs outputs(int64_t n_rows) const;

  struct Vector {
    const float** at;
    int64_t n;
  };
  // The arrays that there are.
  std::vector<Vector> vectors();
};

inline DeviceBlockOutputs DeviceBlock::outputs(int64_t n_rows) const {
  int64_t at = 0;
  const auto take = [&](int64_t n) {
    const int64_t place = at;
    at += (n + 3) / 4 * 4;
    return place;
  };
  const int64_t n_experts = has_router() ? router.n_experts : 0, n_used = has_router() ? router.n_used : 0;
  DeviceBlockOutputs to{};
  to.normed = take(has_feed_forward() ? 0 : n_rows * n_embd);
  to.keys = take(n_rows * attention.k_width());
  to.values = take(n_rows * attention.v_width());
  to.scores = take(n_rows * n_experts);
  to.weights = take(n_rows * n_used);
  to.ids = take(n_rows * n_used);
  to.not_finite = take(has_router() ? 1 : 0);
  to.size = at;
  return to;
}

inline std::vector<DeviceBlock::Vector> DeviceBlock::vectors() {
  const Vector all[] = {
      {&attention.q_norm, attention.q_norm_size()},
      {&attention.k_norm, attention.k_norm_size()},
      {&attention.sinks, attention.n_heads},
      {&attention_norm.weight, n_embd},
      {&attention_norm.bias, n_embd},
      {&post_attention_norm, n_embd},
      {&feed_forward_norm.weight, n_embd},
      {&feed_forward_norm.bias, n_embd},
      {&post_feed_forward_norm, n_embd},
      {&router.norm, n_embd},
      {&router.selection_bias, router.n_experts},
  };
  std::vector<Vector> found;
  for (const Vector& vector : all) {
    if (*vector.at != nullptr) found.push_back(vector);
  }
  return found;
}

}  // namespace expertree
