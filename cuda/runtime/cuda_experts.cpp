#include "cuda/runtime/cuda_experts.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cpp/base/error.h"
#include "cuda/runtime/call.h"
#include "cuda/runtime/formats.h"
#include "cuda/runtime/wait_switch.h"

namespace expertree::cuda {
namespace {

uint64_t pinned_bytes(const DeviceExpertsPlan& plan) {
  Carver carver(nullptr);
  PinnedBuffers(plan, ExpertSizes(plan), &carver);
  return carver.used_bytes();
}

DeviceBuffers carve_device(const DeviceExpertsPlan& plan, const ExpertSizes& sizes, void* memory) {
  Carver carver(memory);
  return DeviceBuffers(plan, sizes, &carver);
}

PinnedBuffers carve_pinned(const DeviceExpertsPlan& plan, const ExpertSizes& sizes, void* memory) {
  Carver carver(memory);
  return PinnedBuffers(plan, sizes, &carver);
}

int64_t packed_offset(const DeviceExpertLayer& layer, int matrix) {
  int64_t at = 0;
  for (int m = 0; m < matrix; ++m) {
    const DeviceExpertLayer::Matrix& w = layer.matrices[m];
    at += packed_layout(w.dtype, w.rows, w.k).bytes;
  }
  return at;
}

}  // namespace

uint64_t CudaExperts::device_bytes(const DeviceExpertsPlan& plan) {
  Carver carver(nullptr);
  DeviceBuffers(plan, ExpertSizes(plan), &carver);
  return carver.used_bytes();
}

CudaExperts::CudaExperts(const DeviceExpertsPlan& plan)
    : plan_(plan),
      sizes_(plan),
      device_memory_(allocate_device(device_bytes(plan))),
      pinned_memory_(allocate_pinned(pinned_bytes(plan))),
      device_(carve_device(plan, sizes_, device_memory_.get())),
      pinned_(carve_pinned(plan, sizes_, pinned_memory_.get())),
      copies_(make_stream()),
      runs_(make_stream()),
      slots_(device_.slots.size()),
      runs_done_(make_event()),
      batch_begun_(make_event(true)),
      batch_done_(make_event(true)) {
  for (Slot& slot : slots_) slot.copied = make_event();
  for (Staging& staging : staging_) staging.copied = make_event();
  upload_parameters();
}

CudaExperts::~CudaExperts() { recover(); }

// Scales and biases, through the inputs' buffer.
void CudaExperts::upload_parameters() {
  const int64_t most = plan_.max_inputs * plan_.n_embd;
  const auto upload = [&](const float* to, const float* from, int64_t n) {
    for (int64_t at = 0; at < n; at += most) {
      const auto size = static_cast<size_t>(std::min(most, n - at)) * sizeof(float);
      std::memcpy(pinned_.inputs, from + at, size);
      CUDA_CHECK(
          cudaMemcpyAsync(const_cast<float*>(to) + at, pinned_.inputs, size, cudaMemcpyHostToDevice, runs_.get()));
      CUDA_CHECK(cudaStreamSynchronize(runs_.get()));
    }
  };
  for (size_t l = 0; l < plan_.layers.size(); ++l) {
    const DeviceExpertLayer& layer = plan_.layers[l];
    for (int m = 0; m < kExpertMatrices; ++m) {
      const DeviceExpertLayer::Matrix& matrix = layer.matrices[m];
      const LayerParameters& to = device_.layers[l];
      if (to.scales[m] != nullptr) upload(to.scales[m], matrix.scales, layer.n_experts);
      if (to.biases[m] != nullptr) upload(to.biases[m], matrix.biases, layer.n_experts * matrix.rows);
    }
  }
}

std::byte* CudaExperts::stage(int32_t) {
  Staging& staging = staging_[next_staging_];
  if (staging.in_use && is_kept(Wait::kStaging)) CUDA_CHECK(cudaEventSynchronize(staging.copied.get()));
  staging.in_use = false;
  return pinned_.staged[next_staging_];
}

void CudaExperts::copy(int32_t slot_number, int32_t layer_number) {
  const DeviceExpertLayer& layer = plan_.layers[static_cast<size_t>(layer_number)];
  Slot& slot = slots_[static_cast<size_t>(slot_number)];
  Staging& staging = staging_[next_staging_];
  std::byte* staged = device_.staged[next_staging_];
  const auto size = static_cast<size_t>(layer.offset_of(kExpertMatrices));
  const cudaStream_t stream = copies_.get();
  CUDA_CHECK(cudaMemcpyAsync(staged, pinned_.staged[next_staging_], size, cudaMemcpyHostToDevice, stream));
  if (slot.last_run > n_runs_ended_ && is_kept(Wait::kSlotFree)) {
    CUDA_CHECK(cudaStreamWaitEvent(stream, runs_done_.get(), 0));
  }
  for (int m = 0; m < kExpertMatrices; ++m) {
    const DeviceExpertLayer::Matrix& w = layer.matrices[m];
    std::byte* packed = device_.slots[static_cast<size_t>(slot_number)] + packed_offset(layer, m);
    CUDA_CHECK(launch_pack_rows(w.dtype, staged + layer.offset_of(m), w.rows, w.k, packed, stream));
  }
  CUDA_CHECK(cudaEventRecord(staging.copied.get(), stream));
  CUDA_CHECK(cudaEventRecord(slot.copied.get(), stream));
  staging.in_use = true;
  slot.is_waited_for = false;
  next_staging_ = (next_staging_ + 1) % kStagingBuffers;
}

bool CudaExperts::is_link_busy() {
  const Staging& last = staging_[(next_staging_ + kStagingBuffers - 1) % kStagingBuffers];
  if (!last.in_use) return false;
  const cudaError_t status = cudaEventQuery(last.copied.get());
  if (status == cudaErrorNotReady) return true;
  check(status, "cudaEventQuery");
  return false;
}

void CudaExperts::publish(int32_t layer_number, std::span<const int32_t> slots) {
  const auto l = static_cast<size_t>(layer_number);
  ET_CHECK(std::ssize(slots) == plan_.layers[l].n_experts);
  std::vector<const void*> places;
  for (const int32_t slot : slots) places.push_back(device_.slots[static_cast<size_t>(slot)]);
  std::byte* pinned = stage(layer_number);
  const size_t size = places.size() * sizeof(void*);
  const cudaStream_t stream = copies_.get();
  // In pieces, as an expert may be smaller than the table.
  const auto most = static_cast<size_t>(sizes_.staged_bytes);
  for (size_t at = 0; at < size; at += most) {
    const size_t n = std::min(most, size - at);
    std::memcpy(pinned, reinterpret_cast<const std::byte*>(places.data()) + at, n);
    CUDA_CHECK(cudaMemcpyAsync(reinterpret_cast<std::byte*>(device_.published[l]) + at, pinned, n,
                               cudaMemcpyHostToDevice, stream));
    if (is_kept(Wait::kPublished)) CUDA_CHECK(cudaStreamSynchronize(stream));
  }
}

void CudaExperts::end_batch() {
  if (batch_pending_ && is_kept(Wait::kBatch)) CUDA_CHECK(cudaEventSynchronize(batch_done_.get()));
  batch_pending_ = false;
}

void CudaExperts::begin(int32_t layer, const float* inputs, int64_t n_inputs) {
  ET_CHECK(n_inputs <= plan_.max_inputs);
  if (batch_pending_ && is_kept(Wait::kInputs)) CUDA_CHECK(cudaEventSynchronize(batch_done_.get()));
  batch_pending_ = true;
  layer_ = layer;
  n_inputs_ = n_inputs;
  n_pairs_ = 0;
  tables_used_ = 0;
  std::memcpy(pinned_.inputs, inputs, static_cast<size_t>(n_inputs * plan_.n_embd) * sizeof(float));
}

void CudaExperts::quantize_inputs(int32_t layer, const float* x, int64_t n, cudaStream_t stream) {
  bool forms[kRowForms] = {};
  for (const int m : {0, 1}) {
    const int form = row_form(plan_.layers[static_cast<size_t>(layer)].matrices[m].dtype);
    if (form >= 0) forms[form] = true;
  }
  for (int f = 0; f < kRowForms; ++f) {
    if (!forms[f]) continue;
    CUDA_CHECK(launch_quantize_rows(x, plan_.n_embd, n, plan_.n_embd, kFormBlocks[f], device_.input_rows[f], stream));
  }
}

void CudaExperts::fill_tables(std::span<const DeviceRows> experts, const BatchTables& tables) const {
  const int32_t n_experts = plan_.layers[static_cast<size_t>(layer_)].n_experts;
  std::fill_n(tables.begin, n_experts + 1, 0);
  *tables.n_active = static_cast<int32_t>(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    const DeviceRows& rows = experts[i];
    tables.active[i] = rows.expert;
    tables.data[rows.expert] = device_.slots[static_cast<size_t>(rows.slot)];
    tables.begin[rows.expert + 1] = static_cast<int32_t>(rows.n);
  }
  for (int32_t e = 0; e < n_experts; ++e) tables.begin[e + 1] += tables.begin[e];
  int64_t before = n_pairs_;  // outputs come in the order in which experts were given
  for (const DeviceRows& rows : experts) {
    int32_t at = tables.begin[rows.expert];
    for (int64_t i = 0; i < rows.n; ++i, ++at) {
      tables.x_row[at] = rows.x_rows[i];
      tables.slot[at] = static_cast<int32_t>(before++);
    }
  }
}

ProductInput CudaExperts::input_for(DType dtype, const float* x) const {
  ProductInput input;
  if (const int form = row_form(dtype); form >= 0) {
    input.q = device_.input_rows[form];
  } else {
    input.f32 = x;
    input.f32_stride = plan_.n_embd;
  }
  return input;
}

void CudaExperts::launch(const BatchTables& tables, const ExpertRunShape& shape, const float* x, cudaStream_t stream) {
  const DeviceExpertLayer& layer = plan_.layers[static_cast<size_t>(shape.layer)];
  const LayerParameters& parameters = device_.layers[static_cast<size_t>(shape.layer)];
  const auto matrix = [&](int m) {
    const DeviceExpertLayer::Matrix& w = layer.matrices[m];
    return ExpertMatrix{.dtype = w.dtype,
                        .rows = w.rows,
                        .k = w.k,
                        .data = tables.data,
                        .offset = packed_offset(layer, m),
                        .scale = parameters.scales[m],
                        .bias = parameters.biases[m]};
  };
  const ExpertMatrix gate = matrix(0), up = matrix(1), down = matrix(2);
  const ExpertGroups groups{.active = tables.active,
                            .n_active = tables.n_active,
                            .begin = tables.begin,
                            .x_row = tables.x_row,
                            .slot = tables.slot,
                            .n_slots = static_cast<int32_t>(shape.n_pairs),
                            .max_groups = static_cast<int32_t>(shape.n_active),
                            .max_rows = static_cast<int32_t>(shape.max_rows)};
  CUDA_CHECK(launch_expert_hidden(gate, up, unit_of(plan_.unit), input_for(gate.dtype, x), input_for(up.dtype, x),
                                  groups, device_.hidden, gate.rows, device_.scratch, stream));
  ProductInput hidden;
  if (const int form = row_form(down.dtype); form < 0) {
    hidden.f32 = device_.hidden;
    hidden.f32_stride = down.k;
  } else {
    const int64_t block = kFormBlocks[form];
    hidden.q = int8_rows_at(device_.hidden_rows[form], shape.n_pairs, down.k, block);
    CUDA_CHECK(launch_quantize_rows(device_.hidden, down.k, shape.n_pairs, down.k, block, hidden.q, stream));
  }
  CUDA_CHECK(launch_expert_down(down, hidden, groups, device_.outputs, plan_.n_embd, stream));
}

void CudaExperts::wait_for_copies(std::span<const DeviceRows> experts) {
  for (const DeviceRows& rows : experts) {
    Slot& slot = slots_[static_cast<size_t>(rows.slot)];
    if (!slot.is_waited_for && is_kept(Wait::kCopied)) {
      CUDA_CHECK(cudaStreamWaitEvent(runs_.get(), slot.copied.get(), 0));
    }
    slot.is_waited_for = true;
    slot.last_run = n_runs_ + 1;
  }
}

void CudaExperts::enqueue_run(const ExpertRunShape& shape, uint64_t tables_at) {
  if (shape.n_inputs > 0) {
    const auto size = static_cast<size_t>(shape.n_inputs * plan_.n_embd) * sizeof(float);
    CUDA_CHECK(cudaMemcpyAsync(device_.inputs, pinned_.inputs, size, cudaMemcpyHostToDevice, runs_.get()));
    quantize_inputs(layer_, device_.inputs, shape.n_inputs, runs_.get());
  }
  Carver device(device_.tables + tables_at);
  const auto tables = BatchTables::take(&device, plan_.layers[static_cast<size_t>(layer_)].n_experts, shape.n_pairs);
  CUDA_CHECK(cudaMemcpyAsync(device_.tables + tables_at, pinned_.tables + tables_at, device.used_bytes(),
                             cudaMemcpyHostToDevice, runs_.get()));
  launch(tables, shape, device_.inputs, runs_.get());
  const int64_t at = n_pairs_ * plan_.n_embd;
  CUDA_CHECK(cudaMemcpyAsync(pinned_.outputs + at, device_.outputs + at,
                             static_cast<size_t>(shape.n_pairs * plan_.n_embd) * sizeof(float), cudaMemcpyDeviceToHost,
                             runs_.get()));
}

void CudaExperts::enqueue_mixture(const MixtureRun& run, cudaStream_t stream) {
  const int32_t n_experts = plan_.layers[static_cast<size_t>(run.layer)].n_experts;
  const int64_t n_pairs = run.n_rows * run.n_used;
  ET_CHECK(run.n_rows <= plan_.max_inputs && n_pairs <= plan_.max_pairs);
  Carver carver(device_.tables);
  BatchTables tables = BatchTables::take(&carver, n_experts, n_pairs);
  tables.data = device_.published[static_cast<size_t>(run.layer)];
  CUDA_CHECK(launch_group_slots(run.chosen, static_cast<int32_t>(run.n_rows), run.n_used, n_experts, false, tables.data,
                                {.active = tables.active,
                                 .n_active = tables.n_active,
                                 .missing = device_.missing + 1,
                                 .n_missing = device_.missing,
                                 .begin = tables.begin,
                                 .x_row = tables.x_row,
                                 .slot = tables.slot},
                                stream, run.n_rows_device));
  quantize_inputs(run.layer, run.x, run.n_rows, stream);
  launch(tables, {run.layer, run.n_rows, std::min<int64_t>(n_experts, n_pairs), run.n_rows, n_pairs}, run.x, stream);
  CUDA_CHECK(launch_sum_experts(device_.outputs, run.weights, static_cast<int32_t>(run.n_rows), run.n_used,
                                plan_.n_embd, run.beside, run.scale, run.y, stream));
}

// A batch's first run, with its inputs, may be a graph: with all experts there it is the whole batch.
void CudaExperts::run(std::span<const DeviceRows> experts) {
  if (experts.empty()) return;
  const bool is_first = n_pairs_ == 0;
  ExpertRunShape shape{layer_, is_first ? n_inputs_ : 0, std::ssize(experts), 0, 0};
  for (const DeviceRows& rows : experts) {
    shape.n_pairs += rows.n;
    shape.max_rows = std::max(shape.max_rows, rows.n);
  }
  const int64_t n_pairs = shape.n_pairs;
  ET_CHECK(batch_pending_ && n_pairs_ + n_pairs <= plan_.max_pairs);
  const bool is_graph = is_first && n_inputs_ <= kMostPreparedRows;
  if (is_graph) {
    shape.n_inputs = std::min(rounded_up(shape.n_inputs), plan_.max_inputs);
    shape.n_active = rounded_up(shape.n_active);
    shape.max_rows = rounded_up(shape.max_rows);
    shape.n_pairs = std::min(rounded_up(n_pairs), plan_.max_pairs);
  }
  const int32_t n_experts = plan_.layers[static_cast<size_t>(layer_)].n_experts;
  Carver measure(nullptr);
  BatchTables::take(&measure, n_experts, shape.n_pairs);
  if (tables_used_ + measure.used_bytes() > static_cast<uint64_t>(table_bytes(plan_, sizes_))) {
    CUDA_CHECK(cudaEventSynchronize(runs_done_.get()));
    tables_used_ = 0;
  }
  Carver pinned(pinned_.tables + tables_used_);
  fill_tables(experts, BatchTables::take(&pinned, n_experts, shape.n_pairs));
  wait_for_copies(experts);
  if (is_first) CUDA_CHECK(cudaEventRecord(batch_begun_.get(), runs_.get()));
  if (is_graph) {
    graphs_.run(shape, runs_.get(), [&] { enqueue_run(shape, 0); });
  } else {
    enqueue_run(shape, tables_used_);
  }
  tables_used_ += measure.used_bytes();
  ++n_runs_;
  CUDA_CHECK(cudaEventRecord(runs_done_.get(), runs_.get()));
  CUDA_CHECK(cudaEventRecord(batch_done_.get(), runs_.get()));
  n_pairs_ += n_pairs;
}

const float* CudaExperts::wait() {
  ET_CHECK(batch_pending_);
  if (is_kept(Wait::kOutputs)) CUDA_CHECK(cudaEventSynchronize(batch_done_.get()));
  batch_pending_ = false;
  n_runs_ended_ = n_runs_;
  float ms = 0.0f;
  run_seconds_ = cudaEventElapsedTime(&ms, batch_begun_.get(), batch_done_.get()) == cudaSuccess ? ms * 1e-3 : 0.0;
  return pinned_.outputs;
}

double CudaExperts::measure_link() {
  constexpr int kCopies = 4;
  const auto size = static_cast<size_t>(sizes_.staged_bytes);
  // The first copy finds the link asleep.
  CUDA_CHECK(cudaMemcpyAsync(device_.staged[0], pinned_.staged[0], size, cudaMemcpyHostToDevice, copies_.get()));
  CUDA_CHECK(cudaStreamSynchronize(copies_.get()));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCopies; ++i) {
    const int b = i % kStagingBuffers;
    CUDA_CHECK(cudaMemcpyAsync(device_.staged[b], pinned_.staged[b], size, cudaMemcpyHostToDevice, copies_.get()));
  }
  CUDA_CHECK(cudaStreamSynchronize(copies_.get()));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(kCopies) * static_cast<double>(size) / std::max(seconds.count(), 1e-9);
}

bool CudaExperts::recover() noexcept {
  const bool copied = cudaStreamSynchronize(copies_.get()) == cudaSuccess;
  const bool ran = cudaStreamSynchronize(runs_.get()) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  batch_pending_ = false;
  n_runs_ended_ = n_runs_;
  for (Staging& staging : staging_) staging.in_use = false;
  for (Slot& slot : slots_) slot.is_waited_for = true;
  return copied && ran;
}

}  // namespace expertree::cuda
