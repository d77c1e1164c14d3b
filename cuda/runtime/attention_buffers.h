// Memory of blocks on the device: keys and values of all cells, parameters, what lies between inputs and outputs, and the
// tables of a call.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpp/backend/device_dense.h"
#include "cuda/kernels/cache_cells.h"
#include "cuda/runtime/formats.h"
#include "cuda/runtime/owned.h"

namespace expertree::cuda {

// How large the tables of a call are.
struct TableShape {
  int64_t n_rows = 0;
  int64_t n_pairs = 0;
  int64_t n_pairs_windowed = 0;
  int64_t n_tails = 0;

  auto operator<=>(const TableShape&) const = default;
};

// What a call is told of its rows, side by side.
struct AttentionTables {
  struct Angles {
    float* cos;
    float* sin;
    int64_t n_pairs;
  };
  Angles angles;
  Angles windowed;
  float* query_scale;
  int32_t* cells;
  int32_t* first;
  int32_t* base;
  int32_t* n_prefix;
  int32_t* tail;
  int32_t* n_tail;
  int32_t* tails;

  static AttentionTables take(Carver* carver, const TableShape& shape);
};

// Bytes of the tables of the largest call.
int64_t attention_table_bytes(const DeviceDensePlan& plan);

struct AttentionDevice {
  struct Block {
    DeviceBlock parameters;  // the plan's, with vectors in device memory
    CacheCells keys;
    CacheCells values;
  };
  AttentionDevice(const DeviceDensePlan& plan, const bool (&forms)[kRowForms], Carver* carver);

  float* residual = nullptr;
  float* q = nullptr;
  float* gate = nullptr;
  float* attended = nullptr;
  float* added = nullptr;  // what attention or the feed-forward part adds to the residual stream
  void* attended_rows[kRowForms] = {};
  std::byte* scratch = nullptr;
  std::byte* tables = nullptr;
  std::vector<Block> blocks;
};

}  // namespace expertree::cuda
