#include "cuda/kernels/int8_rows.h"

namespace expertree::cuda {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

Int8Rows int8_rows_shape(int64_t n, int64_t block) {
  const int64_t q_stride = round_up(n, 128);
  return {nullptr, nullptr, nullptr, q_stride, round_up((n + block - 1) / block, 4), q_stride / 16};
}

int64_t int8_rows_bytes(int64_t n_rows, int64_t n, int64_t block) {
  const Int8Rows shape = int8_rows_shape(n, block);
  return n_rows * (shape.q_stride + shape.d_stride * 4 + shape.sums_stride * 2);
}

Int8Rows int8_rows_at(void* memory, int64_t n_rows, int64_t n, int64_t block) {
  Int8Rows rows = int8_rows_shape(n, block);
  auto* bytes = static_cast<uint8_t*>(memory);
  rows.q = reinterpret_cast<int8_t*>(bytes);
  rows.d = reinterpret_cast<float*>(bytes + n_rows * rows.q_stride);
  rows.sums16 = reinterpret_cast<int16_t*>(bytes + n_rows * (rows.q_stride + rows.d_stride * 4));
  return rows;
}

}  // namespace expertree::cuda
