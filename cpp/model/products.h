// Products of a model's dense matrices, each where the matrix lies: on a device, or on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "cpp/backend/cpu_backend.h"
#include "cpp/backend/device.h"
#include "cpp/model/cell_pool.h"
#include "cpp/model/dense_parts.h"

namespace expertree {

struct ProductStats {
  int64_t n_products = 0;  // on the device
  int64_t n_errors = 0;
  int64_t wait_us = 0;  // for outputs
  bool is_lost = false;  // the device failed and is left alone
};

// Cells of a layer that a device lacks, as the CPU keeps them: keys and values [n][n_kv_heads][row bytes].
struct CellFill {
  int64_t cell;  // in the pool
  int64_t n;
  const std::byte* keys;
  const std::byte* values;
};

// A layer from its attention on; mixture: with its experts, which are all published.
struct BlockRun {
  int32_t block;
  bool mixture;
};

// One thread at a time; stats() from any.
class Products {
 public:
  explicit Products(CpuBackend& backend) : backend_(backend) {}

  // Copies the plan's parts to the device; `check_stop`, called between matrices, may throw. experts: of its mixtures, or
  // nullptr; they outlive this. Throws kOutOfMemory, kDevice.
  void place(Device& device, const DensePlan& plan, std::span<const DensePart> parts, DeviceExperts* experts,
             const std::function<void()>& check_stop);

  // As CpuBackend::matmul. What the device has runs there beside what the CPU has. The device's errors are thrown, and
  // what it holds stays; when it is lost the CPU runs all from the next call on.
  void matmul(Activations& x, std::span<const CpuBackend::Product> products);

  // Begins y = down . unit(gate . x, up . x) for all rows of x, if the device has it; else false. No other call before it
  // is ended.
  bool begin_feed_forward(const FeedForwardWeights& w, const Activations& x);
  // y: [rows of x][down.rows]
  void end_feed_forward(float* y);

  // Of the device's blocks that of a layer; -1: the CPU runs it.
  int32_t block_of(int64_t layer) const;
  const DeviceBlock& block(int32_t number) const { return blocks_[static_cast<size_t>(number)]; }
  // Where sequences get cells for it; nullptr: there is none.
  const std::shared_ptr<CellPool>& cells() const { return cells_; }
  int64_t max_tails() const { return max_tails_; }
  // Floats of all outputs of a call, and the rows that those of n rows have room for.
  int64_t max_outputs() const { return max_outputs_; }
  int64_t rows_with_room(int64_t n) const { return expertree::rows_with_room(n, max_rows_); }
  // Runs blocks, one after the other, on n rows of the residual stream, each when the cells that it lacks are filled in:
  // fills(i) says which, good until it is called again. rows: nullptr when they are the last call's. Then the best n_best
  // logits, or where that is 0 the residual stream. The outputs, as device_dense.h lists them, are there until the next call.
  const float* run_blocks(std::span<const BlockRun> blocks, const float* residual, int64_t n,
                          const DeviceAttentionRows* rows,
                          const std::function<std::span<const CellFill>(size_t)>& fills, int32_t n_best);

  // Whether best_logits() may be asked.
  bool has_head() const { return head_.matrix >= 0 && !is_lost(); }
  // The best k logits of n rows of the residual stream, [n][k] each, largest first, ties to the lower id. False: some logit
  // is NaN or +inf, and nothing else is known.
  bool best_logits(const float* residual, int64_t n, int32_t k, float* values, int32_t* ids);
  // From the outputs of the head, DeviceHead::outputs(rows_with_room(n), k).
  bool take_best(const float* outputs, int64_t n, int32_t k, float* values, int32_t* ids) const;

  // The device is lost: somebody else has found out.
  void give_up() noexcept;
  bool is_lost() const;
  ProductStats stats() const;

 private:
  struct Placed {
    int32_t matrix;  // on the device
    const float* bias;
  };

  int32_t place_of(const WeightMatrix& w, const float* bias) const;
  // Rows of a call whose outputs have `width` floats each.
  int64_t most_rows(int64_t width) const;
  void run_there(const Activations& x, int64_t first, int64_t n, std::span<const CpuBackend::Product> products);
  void copy_outputs(const float* outputs, int64_t first, int64_t n, std::span<const CpuBackend::Product> products);
  const float* wait(int64_t n_products);
  // Calls the device.
  template <typename Function>
  auto guarded(const Function& function) -> decltype(function()) {
    try {
      return function();
    } catch (...) {
      recover();
      throw;
    }
  }
  void recover() noexcept;

  CpuBackend& backend_;
  std::unique_ptr<DeviceDense> dense_;  // nullptr: nothing is on a device
  std::unordered_map<const std::byte*, Placed> placed_;  // by where the matrix lies in RAM
  int64_t max_rows_ = 0;
  int64_t max_outputs_ = 0;
  int64_t max_tails_ = 0;
  DeviceHead head_;
  int64_t n_vocab_ = 0;  // of it
  std::vector<int32_t> block_of_layer_;
  std::vector<DeviceBlock> blocks_;
  std::shared_ptr<CellPool> cells_;
  int64_t n_pending_ = 0;  // floats of the outputs of a feed-forward part
  std::vector<CpuBackend::Product> here_, there_;  // of one call
  mutable std::mutex stats_mutex_;
  ProductStats stats_;
};

}  // namespace expertree
