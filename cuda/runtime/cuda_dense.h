// Dense matrices in device memory, and products with them on a stream of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpp/backend/device_dense.h"
#include "cuda/runtime/call_graphs.h"
#include "cuda/runtime/call_shape.h"
#include "cuda/runtime/cuda_experts.h"
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

  void use_experts(DeviceExperts& experts) override;
  void load(int32_t matrix, const std::byte* rows) override;
  void begin(const float* x, int64_t n_rows, int64_t k) override;
  void product(int32_t matrix) override;
  void feed_forward(int32_t gate, int32_t up, int32_t down) override;
  void block(int32_t block) override;
  void mixture(int32_t block) override;
  void residual() override;
  void set_rows(const DeviceAttentionRows& rows) override;
  void best(int32_t k) override;
  void put_cells(int32_t block, int64_t cell, int64_t n, const std::byte* keys, const std::byte* values) override;
  void run() override;
  const float* wait() override;
  bool recover() noexcept override;

 private:
  struct LoadBuffer {
    Event copied;
    bool in_use = false;
  };

  // Queries or keys of the call's rows.
  struct Heads {
    float* x;
    int32_t n;
    DeviceHeadNorm norm;
    const float* weight;
    const float* scale;  // [n_rows] or nullptr
  };

  const DeviceMatrix& shape(int32_t matrix) const { return plan_.matrices[static_cast<size_t>(matrix)]; }
  DenseMatrix matrix(int32_t matrix) const;
  // A loading buffer that nothing reads any more, and, to the device, what was put there.
  std::byte* load_buffer();
  std::byte* send_buffer(int64_t size_bytes);
  void upload(float* to, const float* from, int64_t n);
  void upload_biases();
  void upload_block_parameters();
  void upload_head_norm();
  void add_work(CallWork work);
  // Puts all that the call does into the stream, from its inputs' copy to its outputs'. Reads nothing of the call but its
  // shape: a graph does it again for others.
  void enqueue_call();
  void enqueue_work(const CallWork& work);
  void enqueue_block(int32_t number);
  void enqueue_mixture(int32_t number);
  void enqueue_residual();
  void enqueue_best(int32_t k);
  ProductInput input_for(DType dtype);
  // Rows of the call, [n_rows][k], as a matrix of this format reads them; forms: memory for what they are rounded to.
  ProductInput rows_for(DType dtype, const float* x, void* const (&forms)[kRowForms], int64_t k);
  void product_into(int32_t matrix, float* y);
  void send_tables();
  void prepare_heads(const DeviceAttentionLayer& layer, const Heads& heads);
  void attend(const AttentionDevice::Block& block);
  // Of the call's inputs, into y; their keys and values.
  void attention(const AttentionDevice::Block& block, float* k, float* v, float* y);
  void begin_blocks();
  void end_block(const DeviceBlock& block);
  void add_to_residual(const DeviceBlock& block, const float* post_norm, float* normed, int32_t* not_finite);
  void choose_experts(const DeviceBlock& block, const DeviceBlockOutputs& at, float* outputs);
  void feed_forward_into(int32_t gate, int32_t up, int32_t down, float* y);
  // What products read from now on: x [n_rows][k] in device memory.
  void set_inputs(const float* x, int64_t k);
  // The place of [n_rows][rows] further outputs.
  float* take_outputs(int64_t rows);

  DeviceDensePlan plan_;
  DenseSizes sizes_;
  CudaExperts* experts_ = nullptr;  // of mixtures
  DeviceMemory device_memory_;
  PinnedMemory pinned_memory_;
  DenseDevice device_;
  AttentionDevice attention_;
  DensePinned pinned_;
  Stream stream_;
  LoadBuffer loads_[kLoadBuffers];
  int next_load_ = 0;
  Event done_;  // recorded behind each call
  bool pending_ = false;  // nobody has waited for the call
  CallShape shape_;  // of the call
  TableShape tables_shape_;  // of the last rows that were set, and how many positions they see
  int64_t n_positions_ = 0;
  // While a call is put into the stream.
  int64_t n_rows_ = 0;
  const float* x_ = nullptr;  // the inputs of products, [n_rows][k]
  int64_t k_ = 0;
  int64_t n_outputs_ = 0;
  bool has_blocks_ = false;  // the residual stream is attention_'s, not the inputs
  AttentionTables tables_ = {};  // on the device
  bool has_form_[kRowForms] = {};  // the inputs have been quantised so
  CallGraphs<CallShape> graphs_;
};

}  // namespace expertree::cuda
