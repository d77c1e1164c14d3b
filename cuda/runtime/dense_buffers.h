// Memory of a model's dense matrices on the device, and the pinned memory that rows come and go through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpp/backend/device_dense.h"
#include "cuda/kernels/int8_rows.h"
#include "cuda/runtime/attention_buffers.h"
#include "cuda/runtime/formats.h"
#include "cuda/runtime/owned.h"

namespace expertree::cuda {

constexpr int kLoadBuffers = 2;  // one is filled while the other is copied

// What a plan needs to know of all matrices together.
struct DenseSizes {
  explicit DenseSizes(const DeviceDensePlan& plan);

  int64_t load_bytes = 0;         // of a loading buffer: whole rows
  bool forms[kRowForms] = {};     // in which rows are needed
};

struct DenseDevice {
  DenseDevice(const DeviceDensePlan& plan, const DenseSizes& sizes, Carver* carver);

  std::byte* load[kLoadBuffers];
  float* inputs;
  float* hidden;
  float* scratch;  // as large as hidden, for mixed units
  void* input_rows[kRowForms];
  void* hidden_rows[kRowForms];
  float* outputs;
  float* head_weight = nullptr;  // of the norm before the head; nullptr: none
  float* head_bias = nullptr;
  std::byte* best_scratch = nullptr;
  std::vector<float*> biases;  // [matrices]; nullptr: none
  std::vector<std::byte*> matrices;
};

// What a cell of a layer takes on its way to the device.
int64_t cell_row_bytes(const DeviceAttentionLayer& layer);

struct DensePinned {
  DensePinned(const DeviceDensePlan& plan, const DenseSizes& sizes, Carver* carver);

  std::byte* load[kLoadBuffers];
  float* inputs;
  float* outputs;
  std::byte* tables;
};

}  // namespace expertree::cuda
