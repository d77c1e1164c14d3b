// The part of the device seam (device.h) for dense matrices: what every token needs of a model, kept in the device's
// memory, and products with it. Its calls throw as those of Device do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpp/backend/device_head.h"
#include "cpp/kernels/gated_unit.h"
#include "cpp/tensor/dtype.h"

namespace expertree {

struct DeviceMatrix {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t k = 0;
  float scale = 1.0f;           // of the products, before the bias
  const float* bias = nullptr;  // [rows], read by make_dense; nullptr: none

  int64_t size_bytes() const { return rows * row_bytes(dtype, k); }  // in the file's layout
};

// Calls of few rows, which come again and again, have few widths, so that each can be prepared once: 1, 2, 3, 4, 6, 8, 12, 16,
// 24, 32. More rows than a call has are of no use to anybody.
constexpr int64_t kMostPreparedRows = 32;
inline int64_t rounded_up(int64_t n) {
  int64_t width = 1;
  while (width < n && width + width / 2 < n) width *= 2;
  return width < n ? width + width / 2 : width;
}
inline int64_t rows_with_room(int64_t n, int64_t max_rows) {
  return n <= kMostPreparedRows ? std::min(rounded_up(n), max_rows) : n;
}

struct DeviceDensePlan {
  std::vector<DeviceMatrix> matrices;
  GatedUnit unit = GatedUnit::kSwiGlu;
  int64_t max_rows = 0;     // of a call
  int64_t max_k = 0;        // of its inputs
  int64_t max_hidden = 0;   // rows of the widest gate; 0: there are none
  bool mixed_units = false;  // some gate has another format than its up
  int64_t max_outputs = 0;  // floats of all outputs of a call
  std::vector<DeviceBlock> blocks;
  DeviceHead head;
  int64_t n_cells = 0;    // of the pool of keys and values
  int64_t max_pairs = 0;  // that turn
  int64_t max_tails = 0;  // of a call
};

class DeviceExperts;

// A call is begun, told what it is to do, run, and waited for. The device does what it was told in order. Outputs follow one
// another; what is [n_rows][..] of them has room for rows_with_room(n_rows) rows.
class DeviceDense {
 public:
  // Waits for what is under way.
  virtual ~DeviceDense() = default;

  // Whose mixtures are meant; they outlive this.
  virtual void use_experts(DeviceExperts& experts) = 0;
  // Copies a matrix's rows, in the file's layout, to the device and waits for it.
  virtual void load(int32_t matrix, const std::byte* rows) = 0;

  // Inputs x [n_rows][k], which have been read when this returns. A call before it that nobody waited for is given up.
  virtual void begin(const float* x, int64_t n_rows, int64_t k) = 0;
  // matrix . x for every row: [n_rows][rows].
  virtual void product(int32_t matrix) = 0;
  // The same of down . unit(gate . x, up . x).
  virtual void feed_forward(int32_t gate, int32_t up, int32_t down) = 0;

  // Of a call whose inputs are rows of the residual stream, and that has no products of its own: blocks of the plan's, one
  // after the other, then either of the other two. The outputs: kDeviceCallHead where there are blocks,
  // DeviceBlock::outputs() of each, the residual stream as they leave it [n_rows][n_embd], DeviceHead::outputs().
  virtual void block(int32_t block) = 0;
  // What experts and what is beside them add behind a block with a mixture, which was the last thing that the call was
  // told of. All experts of the layer are published.
  virtual void mixture(int32_t block) = 0;
  virtual void residual() = 0;
  // The best k logits of each row; k: at most kMostBest, and the head's rows.
  virtual void best(int32_t k) = 0;
  // What this call's blocks, and those of later calls, are told of their rows: each has as many. Read when this returns.
  virtual void set_rows(const DeviceAttentionRows& rows) = 0;
  // Fills n cells of a block from `cell` on: keys [n][n_kv_heads][key_bytes], values likewise, in the formats of its
  // attention, which have been read when this returns. This call's blocks and later ones find them.
  virtual void put_cells(int32_t block, int64_t cell, int64_t n, const std::byte* keys, const std::byte* values) = 0;
  // Begins to do it; the call is told nothing any more.
  virtual void run() = 0;
  // Ends the call: all its outputs, there until the next begin().
  virtual const float* wait() = 0;

  // After an error: waits for what is under way. False: the device is lost, and with it what lies there.
  virtual bool recover() noexcept = 0;
};

}  // namespace expertree
