#include "cpp/model/products.h"

#include <algorithm>
#include <cstring>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

namespace expertree {

void Products::place(Device& device, const DensePlan& plan, std::span<const DensePart> parts, DeviceExperts* experts,
                     const std::function<void()>& check_stop) {
  std::unique_ptr<DeviceDense> dense = device.make_dense(plan.device);
  if (experts != nullptr) dense->use_experts(*experts);
  std::unordered_map<const std::byte*, Placed> placed;
  for (size_t p = 0; p < parts.size(); ++p) {
    for (size_t m = 0; plan.first[p] >= 0 && m < parts[p].matrices.size(); ++m) {
      if (check_stop) check_stop();
      const DensePart::Matrix& from = parts[p].matrices[m];
      const int32_t number = plan.first[p] + static_cast<int32_t>(m);
      dense->load(number, from.w->data);
      placed[from.w->data] = {number, from.bias_or_null()};
    }
  }
  for (const auto& [number, router] : plan.routers) dense->load(number, router->data);
  max_rows_ = plan.device.max_rows;
  max_outputs_ = plan.device.max_outputs;
  max_tails_ = plan.device.max_tails;
  head_ = plan.device.head;
  if (head_.matrix >= 0) n_vocab_ = plan.device.matrices[static_cast<size_t>(head_.matrix)].rows;
  block_of_layer_ = plan.block;
  blocks_ = plan.device.blocks;
  if (!blocks_.empty()) cells_ = std::make_shared<CellPool>(plan.device.n_cells);
  dense_ = std::move(dense);
  placed_ = std::move(placed);
}

// -1: on the CPU.
int32_t Products::place_of(const WeightMatrix& w, const float* bias) const {
  if (dense_ == nullptr || is_lost()) return -1;
  const auto found = placed_.find(w.data);
  if (found == placed_.end()) return -1;
  ET_CHECK(found->second.bias == bias);
  return found->second.matrix;
}

void Products::matmul(Activations& x, std::span<const CpuBackend::Product> products) {
  here_.clear();
  there_.clear();
  int64_t width = 0;
  for (const CpuBackend::Product& product : products) {
    const bool is_there = place_of(product.w, product.bias) >= 0;
    (is_there ? there_ : here_).push_back(product);
    if (is_there) width += product.w.rows;
  }
  if (there_.empty()) return backend_.matmul(x, products);
  const int64_t step = most_rows(width);
  for (int64_t first = 0; first < x.rows(); first += step) {
    const int64_t n = std::min(step, x.rows() - first);
    run_there(x, first, n, there_);
    if (first == 0 && !here_.empty()) backend_.matmul(x, here_);
    copy_outputs(wait(std::ssize(there_)), first, n, there_);
  }
}

int64_t Products::most_rows(int64_t width) const {
  const int64_t most = std::min(max_rows_, max_outputs_ / width);
  int64_t n = most;
  while (rows_with_room(n) > most) --n;
  return n;
}

void Products::run_there(const Activations& x, int64_t first, int64_t n,
                         std::span<const CpuBackend::Product> products) {
  guarded([&] {
    dense_->begin(x.row(first), n, x.n());
    for (const CpuBackend::Product& product : products) dense_->product(place_of(product.w, product.bias));
    dense_->run();
  });
}

void Products::copy_outputs(const float* outputs, int64_t first, int64_t n,
                            std::span<const CpuBackend::Product> products) {
  for (const CpuBackend::Product& product : products) {
    const int64_t width = product.w.rows;
    backend_.for_rows(n, width, [&](int64_t r) {
      std::copy_n(outputs + r * width, width, product.y + (first + r) * product.y_stride);
    });
    outputs += rows_with_room(n) * width;
  }
}

const float* Products::wait(int64_t n_products) {
  const int64_t start = now_us();
  const float* outputs = guarded([&] { return dense_->wait(); });
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  stats_.n_products += n_products;
  stats_.wait_us += now_us() - start;
  return outputs;
}

bool Products::begin_feed_forward(const FeedForwardWeights& w, const Activations& x) {
  const int32_t gate = place_of(w.gate, nullptr);
  const int32_t up = place_of(w.up, nullptr);
  const int32_t down = place_of(w.down, nullptr);
  if (gate < 0 || up < 0 || down < 0) return false;
  guarded([&] {
    dense_->begin(x.data(), x.rows(), x.n());
    dense_->feed_forward(gate, up, down);
    dense_->run();
  });
  n_pending_ = x.rows() * w.down.rows;
  return true;
}

void Products::end_feed_forward(float* y) { std::copy_n(wait(3), n_pending_, y); }

int32_t Products::block_of(int64_t layer) const {
  if (cells_ == nullptr || is_lost()) return -1;
  return block_of_layer_[static_cast<size_t>(layer)];
}

const float* Products::run_blocks(std::span<const BlockRun> blocks, const float* residual, int64_t n,
                                  const DeviceAttentionRows* rows,
                                  const std::function<std::span<const CellFill>(size_t)>& fills, int32_t n_best) {
  guarded([&] {
    dense_->begin(residual, n, block(blocks.front().block).n_embd);
    if (rows != nullptr) dense_->set_rows(*rows);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int32_t number = blocks[i].block;
      for (const CellFill& fill : fills(i)) dense_->put_cells(number, fill.cell, fill.n, fill.keys, fill.values);
      dense_->block(number);
      if (blocks[i].mixture) dense_->mixture(number);
    }
    if (n_best > 0) {
      dense_->best(n_best);
    } else {
      dense_->residual();
    }
    dense_->run();
  });
  return wait(std::ssize(blocks) + (n_best > 0 ? 1 : 0));
}

bool Products::best_logits(const float* residual, int64_t n, int32_t k, float* values, int32_t* ids) {
  const int64_t step = most_rows(n_vocab_ + DeviceHead::outputs(1, k).size);
  for (int64_t first = 0; first < n; first += step) {
    const int64_t rows = std::min(step, n - first);
    guarded([&] {
      dense_->begin(residual + first * head_.n_embd, rows, head_.n_embd);
      dense_->best(k);
      dense_->run();
    });
    if (!take_best(wait(1), rows, k, values + first * k, ids + first * k)) return false;
  }
  return true;
}

bool Products::take_best(const float* outputs, int64_t n, int32_t k, float* values, int32_t* ids) const {
  const DeviceBestOutputs at = DeviceHead::outputs(rows_with_room(n), k);
  int32_t not_sound;
  std::memcpy(&not_sound, outputs + at.not_sound, sizeof not_sound);
  if (not_sound != 0) return false;
  std::copy_n(outputs + at.values, n * k, values);
  std::memcpy(ids, outputs + at.ids, static_cast<size_t>(n * k) * sizeof(int32_t));
  return true;
}

void Products::recover() noexcept {
  const bool works = dense_->recover();
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  ++stats_.n_errors;
  if (!works) stats_.is_lost = true;
}

void Products::give_up() noexcept {
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  stats_.is_lost = dense_ != nullptr;
}

bool Products::is_lost() const {
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  return stats_.is_lost;
}

ProductStats Products::stats() const {
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  return stats_;
}

}  // namespace expertree
