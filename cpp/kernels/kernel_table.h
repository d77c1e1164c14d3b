// One table of function pointers per instruction set. All tables compute the same bits (canonical.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/kernels/canonical.h"
#include "cpp/tensor/dtype.h"

namespace expertree {

// Rows of int8 activations (canonical.h, C3). Block size B is 32 or 256; n is a multiple of B.
struct QuantizedRows {
  int8_t* q;        // [rows][n], 64-byte aligned rows (row stride n_padded, a multiple of 64)
  float* d;         // [rows][n / B], stride d_stride floats
  int16_t* sums16;  // [rows][n / 16], stride sums_stride: sum of 16 consecutive q
  int64_t n;
  int64_t q_stride;
  int64_t d_stride;
  int64_t sums_stride;
};

// y[yr][r] = dot(w[r], x[xr]) for r in [row_begin, row_end) and columns c in [0, n_columns),
// with xr = x_rows ? x_rows[c] : c and yr = y_rows ? y_rows[c] : c. Outputs outside are not touched.
struct MatmulArgs {
  const std::byte* w;      // weight rows in the file's own layout, any alignment
  int64_t w_row_bytes;     // stride from row to row
  int64_t k;               // elements per weight row
  int64_t row_begin;
  int64_t row_end;
  const float* x_f32;      // [.][k], stride x_stride floats: float weights and the f32 reference mode
  int64_t x_stride;
  const QuantizedRows* x_q;  // quantised weights
  const int32_t* x_rows;
  int64_t n_columns;
  float* y;                // [.][y_stride]
  int64_t y_stride;
  const int32_t* y_rows;
};

// Keys or values of one KV head by cell: rows of F32, F16, or Q8_0 in whole blocks (canonical.h, C14).
struct CellRows {
  const std::byte* data;
  int64_t row_bytes;  // from cell to cell
  DType dtype = DType::kF32;
};

// One query row's heads that share a KV head (canonical.h, C8).
struct AttendArgs {
  const float* q;          // [n_heads][head_dim_k], stride q_stride
  int64_t q_stride;
  int64_t n_heads;
  CellRows k;
  CellRows v;              // may be the same rows as k, of which it is then the first elements
  float* scratch = nullptr;  // attend_scratch_floats(); none is needed where keys and values are F32
  int64_t head_dim_k;
  int64_t head_dim_v;
  int64_t first = 0;       // the first position that is seen, less than n_prefix + n_tail
  int64_t n_prefix;        // positions 0 .. n_prefix-1 lie in cells 0 .. n_prefix-1
  const int32_t* tail;     // [n_tail] cells of positions n_prefix, n_prefix + 1, ..
  int64_t n_tail;
  float scale;
  float softcap = 0.0f;          // of the scores; 0: none
  const float* sinks = nullptr;  // [n_heads]: a score without a value; null: none
  float* out;              // [n_heads][head_dim_v], stride out_stride
  int64_t out_stride;
};

// One token of one head (canonical.h, C11).
struct DeltaRow {
  const float* k;  // [n_keys]
  const float* q;  // [n_keys]; null: the state moves on and nothing is put out
  const float* v;  // [n_values]
  float decay;
  float beta;
  float* out;  // [n_values]
};

// Columns of one head's state, moved over tokens in order.
struct DeltaScanArgs {
  float* state;  // [n_keys][n_values], stride state_stride: in and out
  int64_t state_stride;
  int64_t n_keys;
  int64_t n_values;
  const DeltaRow* rows;  // [n_rows]
  int64_t n_rows;
};

constexpr int64_t kDecodedCells = kAttentionTile + 8;  // a tile, and by how much those of eight rows may be shifted

// What attend() decodes keys and values into.
static inline int64_t attend_scratch_floats(int64_t head_dim_k, int64_t head_dim_v) {
  return kDecodedCells * ((head_dim_k + 31) / 32 * 32 + (head_dim_v + 31) / 32 * 32);
}

using MatmulFn = void (*)(const MatmulArgs&);
using GatedUnitFn = void (*)(const float* gate, const float* up, int64_t n, float* y);

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512", "neon", "dotprod"

  // x: float [n]; q: int8 [n]; d: float [n / B]; sums16: int16 [n / 16].
  void (*quantize_q8_32)(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16);
  void (*quantize_q8_256)(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums16);

  MatmulFn matmul_f32;  // float activations
  MatmulFn matmul_f16;
  MatmulFn matmul_bf16;
  MatmulFn matmul_q4_0;  // int8 activations in blocks of 32
  MatmulFn matmul_q4_1;
  MatmulFn matmul_q5_0;
  MatmulFn matmul_q5_1;
  MatmulFn matmul_q8_0;
  MatmulFn matmul_iq4_nl;
  MatmulFn matmul_mxfp4;
  MatmulFn matmul_q2_k;  // int8 activations in blocks of 256
  MatmulFn matmul_q3_k;
  MatmulFn matmul_q4_k;
  MatmulFn matmul_q5_k;
  MatmulFn matmul_q6_k;
  MatmulFn matmul_iq4_xs;
  MatmulFn matmul_iq1_s;
  MatmulFn matmul_iq1_m;
  MatmulFn matmul_iq2_xxs;
  MatmulFn matmul_iq2_xs;
  MatmulFn matmul_iq2_s;
  MatmulFn matmul_iq3_xxs;
  MatmulFn matmul_iq3_s;
  MatmulFn matmul_tq1_0;
  MatmulFn matmul_tq2_0;
  MatmulFn matmul_nvfp4;  // int8 activations in blocks of 32

  // y = (x * r) * w, w may be null; x and y may be the same. All float [n].
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t n, float* y);
  // p = softmax(x); x and p may be the same. float [n], n >= 1.
  void (*softmax)(const float* x, int64_t n, float* p);
  // y = silu(gate) * up; y may be gate or up. float [n].
  GatedUnitFn silu_mul;
  // The other gated units of canonical.h, C12, with the same arguments.
  GatedUnitFn gelu_mul;
  GatedUnitFn swiglu_oai;
  GatedUnitFn relu_mul;
  // acc = fma(scale, x, acc). float [n].
  void (*axpy)(float scale, const float* x, int64_t n, float* acc);
  // y = exp(x), y = log(x). float [n].
  void (*exp_f32)(const float* x, int64_t n, float* y);
  void (*log_f32)(const float* x, int64_t n, float* y);
  // rows: [n_rows], all of one KV head. Each row's result is as if it were alone; together they read keys and values
  // from memory once.
  void (*attend)(const AttendArgs* rows, int64_t n_rows);
  // To the nearest binary16, ties to even. x: float [n]; y: binary16 [n].
  void (*encode_f16)(const float* x, int64_t n, uint16_t* y);
  // x: n_taps rows of float [n], oldest first; w: float [n_taps][n]; y: float [n], no row of x (canonical.h, C10).
  void (*convolve)(const float* const* x, const float* w, int64_t n_taps, int64_t n, float* y);
  void (*delta_scan)(const DeltaScanArgs& args);

  // Limits of one core, for benchmarks. Results have no meaning but must be used.
  uint64_t (*probe_read)(const std::byte* data, int64_t size_bytes);  // plain reads in address order
  uint64_t (*probe_int8)(int64_t rounds);                             // int8 products in registers; may be null
  int64_t probe_int8_ops;                                             // operations per round; a multiply-add is two
};

// nullptr when this build or this CPU lacks it. Names: scalar, avx2, avx512, neon, dotprod.
const KernelTable* find_kernels(const char* name);

// The best table of this CPU.
const KernelTable& best_kernels();

// The entry for a weight format.
MatmulFn matmul_of(const KernelTable& table, DType dtype);

// The f32 reference mode for any format: decode (dequantize_row), then dot16 with float activations.
void matmul_reference(DType dtype, const MatmulArgs& args);

// Each instruction set's table; nullptr where the build leaves it out.
const KernelTable* scalar_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();
const KernelTable* neon_kernels();
namespace neon {
const KernelTable* dotprod_kernels();
}

}  // namespace expertree
