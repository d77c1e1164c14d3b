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

// Inputs of a call, of which the first n_rows * k floats are used; before them the number of rows that there are.
struct CallInputs {
  int32_t* n_rows;  // [1]
  float* x;

  static CallInputs take(Carver* carver, int64_t n_floats);
  // From n_rows on.
  static size_t bytes(int64_t n_floats) { return static_cast<size_t>(kHeadFloats + n_floats) * sizeof(float); }

 private:
  static constexpr int64_t kHeadFloats = 64;  // so that rows begin as memory does
};

struct DenseDevice {
  DenseDevice(const DeviceDensePlan& plan, const DenseSizes& sizes, Carver* carver);

  std::byte* load[kLoadBuffers];
  CallInputs inputs;
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
  CallInputs inputs;
  float* outputs;
  std::byte* tables;
};

}  // namespace expertree::cuda
