// A device with memory of its own (a GPU), behind a seam: the core links none of its libraries. A shared library beside
// this one implements it (cuda/runtime) and is loaded when a budget for device memory is asked for (device_library.h).
//
// All calls throw Error: kOutOfMemory, or kDevice when the device or its driver fails. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/backend/device_dense.h"
#include "cpp/kernels/gated_unit.h"
#include "cpp/tensor/dtype.h"

namespace expertree {

struct DeviceInfo {
  std::string name;  // as its driver calls it
  std::string backend;  // "cuda", or "cuda, emulated"
  int32_t n_devices = 0;  // that the machine has; one is used
  int32_t index = 0;  // of that one
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

constexpr int kExpertMatrices = 3;  // gate, up, down: the order of ExpertProjection

// What the experts of a MoE layer look like.
struct DeviceExpertLayer {
  struct Matrix {
    DType dtype = DType::kF32;
    int64_t rows = 0;
    int64_t k = 0;
    const float* scales = nullptr;  // [n_experts], of the products, before the bias; nullptr: all 1
    const float* biases = nullptr;  // [n_experts][rows]; nullptr: none

    int64_t size_bytes() const { return rows * row_bytes(dtype, k); }  // in the file's layout
  };
  Matrix matrices[kExpertMatrices];
  int32_t n_experts = 0;  // 0: none of this layer comes to the device

  // One expert as it is handed over: its matrices in the file's layout, each from a multiple of 16 bytes on.
  int64_t offset_of(int matrix) const {
    int64_t at = 0;
    for (int m = 0; m < matrix; ++m) at += (matrices[m].size_bytes() + 15) / 16 * 16;
    return at;
  }
};

struct DeviceExpertsPlan {
  std::vector<DeviceExpertLayer> layers;  // [n_layers]
  std::vector<uint64_t> slot_bytes;  // of each size class, multiples of 256 and at least Device::slot_bytes
  std::vector<int64_t> n_slots;  // of each class; slots are numbered through, class by class
  GatedUnit unit = GatedUnit::kSwiGlu;
  int64_t n_embd = 0;
  int64_t max_inputs = 0;  // rows of a batch's inputs
  int64_t max_pairs = 0;  // (expert, row) pairs of a batch
};

// The rows that run one expert.
struct DeviceRows {
  int32_t slot;  // where it lies
  int32_t expert;  // of the batch's layer
  int64_t n;
  const int32_t* x_rows;  // [n], rows of the batch's inputs
};

// Copies of experts on a device, and runs of them. Copies and runs are asynchronous; each waits, on the device, for what
// it needs: a run for the copies of its experts, a copy for the runs that read what was in its slot.
class DeviceExperts {
 public:
  // Waits for what is under way.
  virtual ~DeviceExperts() = default;

  // Memory for one expert of a layer on its way to the device (see DeviceExpertLayer::offset_of). Waits for an earlier
  // copy where all of that memory is in use. What is put there is copied by the next copy() and by nothing else.
  virtual std::byte* stage(int32_t layer) = 0;
  // Begins to copy what was staged into a slot.
  virtual void copy(int32_t slot, int32_t layer) = 0;
  // All experts of a layer lie in these slots, [n_experts], for mixtures in calls of blocks (device_dense.h). Waits for
  // their copies. Holds until one of the slots is copied into.
  virtual void publish(int32_t layer, std::span<const int32_t> slots) = 0;
  // Copies have been begun that have not ended.
  virtual bool is_link_busy() = 0;

  // Begins a batch of a layer: its inputs [n_inputs][n_embd], which have been read when this returns. A batch before it
  // that nobody waited for is given up.
  virtual void begin(int32_t layer, const float* inputs, int64_t n_inputs) = 0;
  // Adds experts, at most max_pairs rows in all, to the batch. Their outputs follow those of the runs before.
  virtual void run(std::span<const DeviceRows> experts) = 0;
  // Ends the batch: the outputs of all its pairs in order, [n_pairs][n_embd], there until the next begin().
  virtual const float* wait() = 0;
  // Seconds that the device took for the runs of the last batch that was waited for.
  virtual double run_seconds() = 0;

  // Bytes per second of copies to the device, when nothing else goes on. Makes some.
  virtual double measure_link() = 0;
  // After an error: waits for what is under way. False: the device is lost, and with it what lies there.
  virtual bool recover() noexcept = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceInfo info() const = 0;
  // Bytes of a slot for an expert; 0: the device does not run these formats or sizes.
  virtual uint64_t slot_bytes(const DeviceExpertLayer& layer) const = 0;
  // Bytes of device memory that a plan takes beside its slots.
  virtual uint64_t fixed_bytes(const DeviceExpertsPlan& plan) const = 0;
  // Throws kOutOfMemory when the device has not that much.
  virtual std::unique_ptr<DeviceExperts> make_experts(const DeviceExpertsPlan& plan) = 0;

  // Bytes that a dense matrix takes there; 0: the device does not run its format or size.
  virtual uint64_t matrix_bytes(const DeviceMatrix& matrix) const = 0;
  // Bytes of device memory that a plan takes, matrices included.
  virtual uint64_t dense_bytes(const DeviceDensePlan& plan) const = 0;
  // Throws kOutOfMemory when the device has not that much.
  virtual std::unique_ptr<DeviceDense> make_dense(const DeviceDensePlan& plan) = 0;
};

// What such a library exports, under the name kDeviceEntryName: the device, to be deleted by the caller; nullptr when
// there is none, with why[0 .. why_size) saying what is missing. Libraries made for another abi return nullptr.
constexpr uint32_t kDeviceAbi = 7;
constexpr const char* kDeviceEntryName = "expertree_open_device";
using DeviceEntry = Device* (*)(uint32_t abi, char* why, size_t why_size);

}  // namespace expertree
