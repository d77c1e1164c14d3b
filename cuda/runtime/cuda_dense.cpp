#include "cuda/runtime/cuda_dense.h"

#include <algorithm>
#include <cstring>

#include "cpp/base/error.h"
#include "cuda/kernels/packed_layout.h"
#include "cuda/runtime/call.h"
#include "cuda/runtime/wait_switch.h"

namespace expertree::cuda {
namespace {

uint64_t pinned_bytes(const DeviceDensePlan& plan) {
  Carver carver(nullptr);
  DensePinned(plan, DenseSizes(plan), &carver);
  return carver.used_bytes();
}

// Attention's memory lies behind the rest.
DenseDevice carve_device(const DeviceDensePlan& plan, const DenseSizes& sizes, void* memory) {
  Carver carver(memory);
  return DenseDevice(plan, sizes, &carver);
}

AttentionDevice carve_attention(const DeviceDensePlan& plan, const DenseSizes& sizes, void* memory) {
  Carver carver(memory);
  DenseDevice(plan, sizes, &carver);
  return AttentionDevice(plan, sizes.forms, &carver);
}

DensePinned carve_pinned(const DeviceDensePlan& plan, const DenseSizes& sizes, void* memory) {
  Carver carver(memory);
  return DensePinned(plan, sizes, &carver);
}

}  // namespace

uint64_t CudaDense::device_bytes(const DeviceDensePlan& plan) {
  Carver carver(nullptr);
  const DenseSizes sizes(plan);
  DenseDevice(plan, sizes, &carver);
  AttentionDevice(plan, sizes.forms, &carver);
  return carver.used_bytes();
}

CudaDense::CudaDense(const DeviceDensePlan& plan)
    : plan_(plan),
      sizes_(plan),
      device_memory_(allocate_device(device_bytes(plan))),
      pinned_memory_(allocate_pinned(pinned_bytes(plan))),
      device_(carve_device(plan, sizes_, device_memory_.get())),
      attention_(carve_attention(plan, sizes_, device_memory_.get())),
      pinned_(carve_pinned(plan, sizes_, pinned_memory_.get())),
      stream_(make_stream()),
      done_(make_event()) {
  for (LoadBuffer& buffer : loads_) buffer.copied = make_event();
  upload_biases();
  upload_block_parameters();
  upload_head_norm();
  CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

CudaDense::~CudaDense() { recover(); }

std::byte* CudaDense::load_buffer() {
  LoadBuffer& buffer = loads_[next_load_];
  if (buffer.in_use && is_kept(Wait::kLoaded)) CUDA_CHECK(cudaEventSynchronize(buffer.copied.get()));
  buffer.in_use = false;
  return pinned_.load[next_load_];
}

std::byte* CudaDense::send_buffer(int64_t size_bytes) {
  LoadBuffer& buffer = loads_[next_load_];
  std::byte* there = device_.load[next_load_];
  CUDA_CHECK(cudaMemcpyAsync(there, pinned_.load[next_load_], static_cast<size_t>(size_bytes), cudaMemcpyHostToDevice,
                             stream_.get()));
  CUDA_CHECK(cudaEventRecord(buffer.copied.get(), stream_.get()));
  buffer.in_use = true;
  next_load_ = (next_load_ + 1) % kLoadBuffers;
  return there;
}

void CudaDense::upload_biases() {
  for (size_t m = 0; m < plan_.matrices.size(); ++m) {
    upload(device_.biases[m], plan_.matrices[m].bias, plan_.matrices[m].rows);
    plan_.matrices[m].bias = nullptr;  // the caller's
  }
}

void CudaDense::load(int32_t number, const std::byte* rows) {
  const DeviceMatrix& w = shape(number);
  const int64_t row = row_bytes(w.dtype, w.k);
  const int64_t step = sizes_.load_bytes / row;
  for (int64_t first = 0; first < w.rows; first += step) {
    const int64_t n = std::min(step, w.rows - first);
    std::memcpy(load_buffer(), rows + first * row, static_cast<size_t>(n * row));
    const std::byte* there = send_buffer(n * row);
    CUDA_CHECK(launch_pack_some_rows(w.dtype, there, first, n, w.rows, w.k,
                                     device_.matrices[static_cast<size_t>(number)], stream_.get()));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

DenseMatrix CudaDense::matrix(int32_t number) const {
  const DeviceMatrix& w = shape(number);
  const auto m = static_cast<size_t>(number);
  return {w.dtype, w.rows, w.k, device_.matrices[m], w.scale, device_.biases[m]};
}

void CudaDense::begin(const float* x, int64_t n_rows, int64_t k) {
  ET_CHECK(n_rows <= plan_.max_rows && k <= plan_.max_k);
  if (pending_ && is_kept(Wait::kDenseInputs)) CUDA_CHECK(cudaEventSynchronize(done_.get()));
  pending_ = true;
  shape_ = {};
  shape_.n_rows = rows_with_room(n_rows, plan_.max_rows);
  shape_.k = k;
  *pinned_.inputs.n_rows = static_cast<int32_t>(n_rows);
  std::memcpy(pinned_.inputs.x, x, static_cast<size_t>(n_rows * k) * sizeof(float));
}

void CudaDense::add_work(CallWork work) {
  ET_CHECK(pending_);
  shape_.work.push_back(work);
}

void CudaDense::product(int32_t matrix) { add_work({CallWork::Kind::kProduct, matrix}); }

void CudaDense::feed_forward(int32_t gate, int32_t up, int32_t down) {
  add_work({CallWork::Kind::kFeedForward, gate, up, down});
}

void CudaDense::block(int32_t number) {
  ET_CHECK(tables_shape_.n_rows == shape_.n_rows);
  shape_.tables = tables_shape_;
  shape_.n_positions = n_positions_;
  add_work({CallWork::Kind::kBlock, number});
}

void CudaDense::use_experts(DeviceExperts& experts) { experts_ = &static_cast<CudaExperts&>(experts); }

void CudaDense::mixture(int32_t number) {
  const CallWork behind{CallWork::Kind::kBlock, number};
  ET_CHECK(experts_ != nullptr && !shape_.work.empty() && shape_.work.back() == behind);
  experts_->end_batch();
  add_work({CallWork::Kind::kMixture, number});
}

void CudaDense::residual() { add_work({CallWork::Kind::kResidual}); }

void CudaDense::best(int32_t k) { add_work({CallWork::Kind::kBest, k}); }

void CudaDense::run() {
  ET_CHECK(pending_);
  if (shape_.n_rows <= kMostPreparedRows) {
    graphs_.run(shape_, stream_.get(), [this] { enqueue_call(); });
  } else {
    enqueue_call();
  }
  CUDA_CHECK(cudaEventRecord(done_.get(), stream_.get()));
}

void CudaDense::enqueue_call() {
  const cudaStream_t stream = stream_.get();
  n_rows_ = shape_.n_rows;
  n_outputs_ = 0;
  has_blocks_ = false;
  set_inputs(device_.inputs.x, shape_.k);
  CUDA_CHECK(cudaMemcpyAsync(device_.inputs.n_rows, pinned_.inputs.n_rows, CallInputs::bytes(n_rows_ * k_),
                             cudaMemcpyHostToDevice, stream));
  if (shape_.sends_tables) send_tables();
  for (const CallWork& work : shape_.work) enqueue_work(work);
  CUDA_CHECK(cudaMemcpyAsync(pinned_.outputs, device_.outputs, static_cast<size_t>(n_outputs_) * sizeof(float),
                             cudaMemcpyDeviceToHost, stream));
}

void CudaDense::enqueue_work(const CallWork& work) {
  switch (work.kind) {
    case CallWork::Kind::kProduct: return product_into(work.first, take_outputs(shape(work.first).rows));
    case CallWork::Kind::kFeedForward:
      return feed_forward_into(work.first, work.second, work.third, take_outputs(shape(work.third).rows));
    case CallWork::Kind::kBlock: return enqueue_block(work.first);
    case CallWork::Kind::kMixture: return enqueue_mixture(work.first);
    case CallWork::Kind::kResidual: return enqueue_residual();
    case CallWork::Kind::kBest: return enqueue_best(work.first);
  }
}

void CudaDense::set_inputs(const float* x, int64_t k) {
  x_ = x;
  k_ = k;
  std::fill_n(has_form_, kRowForms, false);
}

ProductInput CudaDense::input_for(DType dtype) {
  ProductInput input;
  const int form = row_form(dtype);
  if (form < 0) {
    input.f32 = x_;
    input.f32_stride = k_;
    return input;
  }
  input.q = int8_rows_at(device_.input_rows[form], n_rows_, k_, kFormBlocks[form]);
  if (has_form_[form]) return input;
  CUDA_CHECK(launch_quantize_rows(x_, k_, n_rows_, k_, kFormBlocks[form], input.q, stream_.get()));
  has_form_[form] = true;
  return input;
}

float* CudaDense::take_outputs(int64_t rows) {
  float* place = device_.outputs + n_outputs_;
  n_outputs_ += n_rows_ * rows;
  ET_CHECK(n_outputs_ <= plan_.max_outputs);
  return place;
}

void CudaDense::product_into(int32_t number, float* y) {
  const DenseMatrix w = matrix(number);
  CUDA_CHECK(launch_product(w, input_for(w.dtype), static_cast<int32_t>(n_rows_), y, w.rows, stream_.get()));
}

ProductInput CudaDense::rows_for(DType dtype, const float* x, void* const (&forms)[kRowForms], int64_t k) {
  ProductInput rows;
  const int form = row_form(dtype);
  if (form < 0) {
    rows.f32 = x;
    rows.f32_stride = k;
    return rows;
  }
  rows.q = int8_rows_at(forms[form], n_rows_, k, kFormBlocks[form]);
  CUDA_CHECK(launch_quantize_rows(x, k, n_rows_, k, kFormBlocks[form], rows.q, stream_.get()));
  return rows;
}

void CudaDense::feed_forward_into(int32_t gate_number, int32_t up_number, int32_t down_number, float* y) {
  const DenseMatrix gate = matrix(gate_number), up = matrix(up_number), down = matrix(down_number);
  const Unit unit = unit_of(plan_.unit);
  const auto n_rows = static_cast<int32_t>(n_rows_);
  const cudaStream_t stream = stream_.get();
  if (gate.dtype == up.dtype) {
    CUDA_CHECK(launch_gated_product(gate, up, unit, input_for(gate.dtype), n_rows, device_.hidden, gate.rows, stream));
  } else {
    CUDA_CHECK(launch_product(gate, input_for(gate.dtype), n_rows, device_.hidden, gate.rows, stream));
    CUDA_CHECK(launch_product(up, input_for(up.dtype), n_rows, device_.scratch, up.rows, stream));
    CUDA_CHECK(launch_gated_unit(unit, device_.hidden, device_.scratch, n_rows_ * gate.rows, device_.hidden, stream));
  }
  CUDA_CHECK(launch_product(down, rows_for(down.dtype, device_.hidden, device_.hidden_rows, gate.rows), n_rows, y,
                            down.rows, stream));
}

const float* CudaDense::wait() {
  ET_CHECK(pending_);
  if (is_kept(Wait::kDenseOutputs)) CUDA_CHECK(cudaEventSynchronize(done_.get()));
  pending_ = false;
  return pinned_.outputs;
}

bool CudaDense::recover() noexcept {
  const bool works = cudaStreamSynchronize(stream_.get()) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  pending_ = false;
  for (LoadBuffer& buffer : loads_) buffer.in_use = false;
  return works;
}

}  // namespace expertree::cuda
