// Launchers of products with packed weights. Pointers are device memory unless it says host; nothing here allocates,
// waits or synchronises, so all of it can be captured in a graph. A launcher returns what the launch returned, or
// cudaErrorInvalidValue for shapes and formats that it has no kernel for.
//
// Results have the bits of cpp/kernels/scalar (canonical.h), whatever the number of rows and the path taken.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cpp/tensor/dtype.h"
#include "cuda/kernels/int8_rows.h"
#include "cuda/kernels/packed_layout.h"

namespace expertree::cuda {

// From the file's layout in device memory (any alignment) to packed planes; in and out must not overlap.
cudaError_t launch_pack_rows(DType dtype, const void* rows_in_file_layout, int64_t rows, int64_t k, void* packed,
                             cudaStream_t stream);
// The same of rows [first, first + n) alone, into their places in the packed matrix of all rows.
cudaError_t launch_pack_some_rows(DType dtype, const void* rows_in_file_layout, int64_t first, int64_t n, int64_t rows,
                                  int64_t k, void* packed, cudaStream_t stream);

constexpr int32_t kDp4aRows = 8;

// Slots, (row, rank) pairs numbered row * n_used + rank, ordered by expert and by number within an expert.
struct ExpertGroups {
  const int32_t* active;    // [max_groups] experts to run, in any order; entries from *n_active on are not read
  const int32_t* n_active;  // [1]
  const int32_t* begin;     // [n_experts + 1] into the ordered slots
  const int32_t* x_row;     // [n_slots] row of the input, by place in the order
  const int32_t* slot;      // [n_slots] slot, by place in the order
  int32_t n_slots;          // host
  int32_t max_groups;       // host: at least *n_active; sets the grid
  int32_t max_rows;         // host: no expert has more rows; sets the grid and which paths are launched
  int32_t dp4a_rows = kDp4aRows;  // host: experts with more rows take the tensor cores; 0: all do
};

// Where launch_group_slots puts what ExpertGroups reads.
struct ExpertGroupsOut {
  int32_t* active;    // [n_experts] experts with rows that lie in device memory, ascending
  int32_t* n_active;  // [1]
  int32_t* missing;   // [n_experts] experts with rows and a null slot pointer, ascending
  int32_t* n_missing; // [1]
  int32_t* begin;     // [n_experts + 1]
  int32_t* x_row;     // [n_slots]
  int32_t* slot;      // [n_slots]
};
// chosen: [n_rows * n_used] expert of each slot. x_per_slot: inputs are one row a slot (weighted inputs), not one a row.
// expert_data: [n_experts] base of each expert's bytes, null where it is not in device memory. n_rows_device: as in
// row_kernels.h.
cudaError_t launch_group_slots(const int32_t* chosen, int32_t n_rows, int32_t n_used, int32_t n_experts,
                               bool x_per_slot, const void* const* expert_data, const ExpertGroupsOut& out,
                               cudaStream_t stream, const int32_t* n_rows_device = nullptr);

// One projection of a layer's experts.
struct ExpertMatrix {
  DType dtype;
  int64_t rows;
  int64_t k;
  const void* const* data;  // [n_experts] base of each expert's bytes
  int64_t offset;           // host: of this projection from the base, a multiple of 16
  const float* scale = nullptr;  // [n_experts], multiplies the products; null: all 1
  const float* bias = nullptr;   // [n_experts][rows], added then; null: none
};

// What a product reads: int8 rows for quantised formats (of the block that the format needs), floats for float formats.
struct ProductInput {
  Int8Rows q{};
  const float* f32 = nullptr;
  int64_t f32_stride = 0;  // floats
};

enum class Unit : int32_t { kSwiGlu, kGeGlu, kSwiGluOai, kReGlu };  // canonical.h, C12

// hidden[i][.] = unit(gate . x[x_row[i]], up . x[x_row[i]]) for every place i of the active experts: float, row stride
// hidden_stride. Gate and up have one shape; where their formats differ, scratch (float, as large as hidden) is needed.
cudaError_t launch_expert_hidden(const ExpertMatrix& gate, const ExpertMatrix& up, Unit unit,
                                 const ProductInput& gate_x, const ProductInput& up_x, const ExpertGroups& groups,
                                 float* hidden, int64_t hidden_stride, float* scratch, cudaStream_t stream);

// out[slot[i]][.] = down . x[i] for every place i of the active experts: float, row stride out_stride.
cudaError_t launch_expert_down(const ExpertMatrix& down, const ProductInput& x, const ExpertGroups& groups, float* out,
                               int64_t out_stride, cudaStream_t stream);

// Row r: sum = 0; for rank: sum = fma(weights[r][rank], out[r * n_used + rank], sum); weights null: all 1.
// y = (sum + beside) * scale; beside null: 0. y may be beside. All rows of n floats, back to back.
cudaError_t launch_sum_experts(const float* out, const float* weights, int32_t n_rows, int32_t n_used, int64_t n,
                               const float* beside, float scale, float* y, cudaStream_t stream);

// One packed matrix by itself: attention, router, head, dense and shared feed-forward parts.
struct DenseMatrix {
  DType dtype;
  int64_t rows;
  int64_t k;
  const void* data;
  float scale = 1.0f;  // of the products
  const float* bias = nullptr;  // [rows]
};
// y[r][.] = w . x[r], r < n_rows; float, row stride y_stride.
cudaError_t launch_product(const DenseMatrix& w, const ProductInput& x, int32_t n_rows, float* y, int64_t y_stride,
                           cudaStream_t stream, int32_t dp4a_rows = kDp4aRows);
// y[r][.] = unit(gate . x[r], up . x[r]); gate and up of one format and shape.
cudaError_t launch_gated_product(const DenseMatrix& gate, const DenseMatrix& up, Unit unit, const ProductInput& x,
                                 int32_t n_rows, float* y, int64_t y_stride, cudaStream_t stream,
                                 int32_t dp4a_rows = kDp4aRows);

// y = unit(gate, up), element by element; y may be gate or up.
cudaError_t launch_gated_unit(Unit unit, const float* gate, const float* up, int64_t n, float* y, cudaStream_t stream);

}  // namespace expertree::cuda
