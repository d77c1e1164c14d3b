// Memory of a model's experts on the device, and the pinned memory that they come and go through.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/backend/device.h"
#include "cuda/kernels/int8_rows.h"
#include "cuda/kernels/packed_layout.h"
#include "cuda/runtime/formats.h"
#include "cuda/runtime/owned.h"

namespace expertree::cuda {

constexpr int kStagingBuffers = 3;

// What a plan needs to know of all layers together.
struct ExpertSizes {
  explicit ExpertSizes(const DeviceExpertsPlan& plan);

  int64_t staged_bytes = 0;  // of the largest expert in the file's layout
  int64_t n_ff = 0;          // of the widest, rounded up to blocks of 256
  int64_t n_experts = 0;     // of the layer that has most
  bool in_forms[kRowForms] = {};  // in which inputs are needed
  bool hidden_forms[kRowForms] = {};
  bool scratch = false;      // gate and up of some layer have formats of their own
};

// A batch of runs: (expert, row) pairs by expert, as launchers want them.
struct BatchTables {
  const void** data;  // [n_experts]
  int32_t* active;    // [n_experts]
  int32_t* n_active;  // [1]
  int32_t* begin;     // [n_experts + 1]
  int32_t* x_row;     // [max_pairs]
  int32_t* slot;      // [max_pairs]

  static BatchTables take(Carver* carver, int64_t n_experts, int64_t n_pairs);
};

struct LayerParameters {
  const float* scales[kExpertMatrices] = {};  // as in DeviceExpertLayer, on the device
  const float* biases[kExpertMatrices] = {};
};

// On the device.
struct DeviceBuffers {
  DeviceBuffers(const DeviceExpertsPlan& plan, const ExpertSizes& sizes, Carver* carver);

  std::byte* staged[kStagingBuffers];
  float* inputs;
  Int8Rows input_rows[kRowForms];
  float* hidden;
  float* scratch;
  void* hidden_rows[kRowForms];
  float* outputs;
  std::byte* tables;
  int32_t* missing;  // [n_experts + 1], of mixtures: none are
  std::vector<LayerParameters> layers;
  std::vector<const void**> published;  // [n_experts] of each layer: where its experts are
  std::vector<std::byte*> slots;
};

// On the host.
struct PinnedBuffers {
  PinnedBuffers(const DeviceExpertsPlan& plan, const ExpertSizes& sizes, Carver* carver);

  std::byte* staged[kStagingBuffers];
  float* inputs;
  float* outputs;
  std::byte* tables;
};

// Bytes of a batch's tables: those of several runs.
int64_t table_bytes(const DeviceExpertsPlan& plan, const ExpertSizes& sizes);

}  // namespace expertree::cuda
