// Dense matrices in device memory, and products with them on a stream of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/backend/device_dense.h"
#include "cuda/runtime/dense_buffers.h"

namespace expertree::cuda {

class CudaDense final : public DeviceDense {
 public:
  explicit CudaDense(const DeviceDensePlan& plan);
  ~CudaDense() override;
  CudaDense(const CudaDense&) = delete;
  CudaDense& operator=(const CudaDense&) = delete;

  // Bytes of device memory, matrices included.
  static uint64_t device_bytes(const DeviceDensePlan& plan);

  void load(int32_t matrix, const std::byte* rows) override;
  void begin(const float* x, int64_t n_rows, int64_t k) override;
  void product(int32_t matrix) override;
  void feed_forward(int32_t gate, int32_t up, int32_t down) override;
  const float* wait() override;
  bool recover() noexcept override;

 private:
  struct LoadBuffer {
    Event copied;
    bool in_use = false;
  };

  const DeviceMatrix& shape(int32_t matrix) const { return plan_.matrices[static_cast<size_t>(matrix)]; }
  DenseMatrix matrix(int32_t matrix) const;
  // A loading buffer that nothing reads any more, and, to the device, what was put there.
  std::byte* load_buffer();
  std::byte* send_buffer(int64_t size_bytes);
  void upload_biases();
  ProductInput input_for(DType dtype);
  ProductInput hidden_for(DType dtype, int64_t n_ff);
  // The place of [n_rows][rows] further outputs.
  float* take_outputs(int64_t rows);

  DeviceDensePlan plan_;
  DenseSizes sizes_;
  DeviceMemory device_memory_;
  PinnedMemory pinned_memory_;
  DenseDevice device_;
  DensePinned pinned_;
  Stream stream_;
  LoadBuffer loads_[kLoadBuffers];
  int next_load_ = 0;
  Event done_;  // recorded behind each product
  bool pending_ = false;  // nobody has waited for the call
  int64_t n_rows_ = 0;  // of the call
  int64_t k_ = 0;
  int64_t n_outputs_ = 0;
  bool has_form_[kRowForms] = {};  // the call's inputs have been quantised so
};

}  // namespace expertree::cuda
