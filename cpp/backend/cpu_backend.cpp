#include "cpp/backend/cpu_backend.h"

#include <algorithm>

#include "cpp/base/error.h"
#include "cpp/base/scratch.h"

namespace expertree {
namespace {

// Weight rows of one task: enough work to hide the hand-out, few enough that threads finish together.
constexpr int64_t kTaskRows = 32;
constexpr int64_t kSmallBatch = 8;  // up to here a task is bound by the weights it reads

int64_t task_rows(int64_t n_rows, int64_t n_columns) {
  return n_columns <= kSmallBatch ? std::max<int64_t>(kTaskRows, (n_rows + 63) / 64 / 16 * 16) : kTaskRows;
}

struct Task {
  int32_t product;
  int64_t row_begin;
  int64_t row_end;
};

void add_tasks(std::vector<Task>* tasks, size_t product, int64_t rows, int64_t n_columns) {
  const int64_t step = task_rows(rows, n_columns);
  for (int64_t r = 0; r < rows; r += step) {
    tasks->push_back({static_cast<int32_t>(product), r, std::min(rows, r + step)});
  }
}

int64_t columns_of(const CpuBackend::Product& product, const Activations& x) {
  return product.x_rows ? product.n_rows : x.rows();
}

}  // namespace

void CpuBackend::prepare(Activations& x, DType dtype) {
  const ActivationFormat format = dtype_info(dtype).activation;
  if (mode_ == ActivationMode::kReference || format == ActivationFormat::kF32) return;
  const bool wide = format == ActivationFormat::kQ8_256;
  Activations::Quantized& q = wide ? x.q8_256_ : x.q8_32_;
  if (q.valid) return;
  const int64_t block = wide ? 256 : 32;
  QuantizedRows& rows = q.rows;
  rows.n = x.n_;
  rows.q_stride = (x.n_ + 63) / 64 * 64;
  rows.d_stride = x.n_ / block;
  rows.sums_stride = x.n_ / 16;
  fit(&q.q, static_cast<size_t>(x.rows_ * rows.q_stride + 64));
  fit(&q.d, static_cast<size_t>(x.rows_ * rows.d_stride + 16));
  fit(&q.sums16, static_cast<size_t>(x.rows_ * rows.sums_stride + 32));
  rows.q = q.q.data();
  rows.d = q.d.data();
  rows.sums16 = q.sums16.data();
  const auto quantize = wide ? kernels_.quantize_q8_256 : kernels_.quantize_q8_32;
  for_rows(x.rows_, x.n_, [&](int64_t r) {
    quantize(x.row(r), x.n_, rows.q + r * rows.q_stride, rows.d + r * rows.d_stride,
             rows.sums16 + r * rows.sums_stride);
  });
  q.valid = true;
}

void CpuBackend::run(const Activations& x, const Product& product, int64_t row_begin, int64_t row_end) const {
  const WeightMatrix& w = product.w;
  MatmulArgs args{};
  args.w = w.data;
  args.w_row_bytes = w.row_bytes;
  args.k = w.k;
  args.row_begin = row_begin;
  args.row_end = row_end;
  args.x_f32 = x.data();
  args.x_stride = x.n_;
  args.x_q = dtype_info(w.dtype).activation == ActivationFormat::kQ8_256 ? &x.q8_256_.rows : &x.q8_32_.rows;
  args.x_rows = product.x_rows;
  args.n_columns = columns_of(product, x);
  args.y = product.y;
  args.y_stride = product.y_stride;
  args.y_rows = product.y_rows;
  if (mode_ == ActivationMode::kReference) {
    matmul_reference(w.dtype, args);
  } else {
    matmul_of(kernels_, w.dtype)(args);
  }
  if (product.bias == nullptr && w.scale == 1.0f) return;
  for (int64_t c = 0; c < args.n_columns; ++c) {
    float* y = product.y + (product.y_rows ? product.y_rows[c] : c) * product.y_stride;
    if (w.scale != 1.0f) {
      for (int64_t r = row_begin; r < row_end; ++r) y[r] = y[r] * w.scale;
    }
    if (product.bias != nullptr) {
      for (int64_t r = row_begin; r < row_end; ++r) y[r] = y[r] + product.bias[r];
    }
  }
}

void CpuBackend::matmul(Activations& x, std::span<const Product> products) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < products.size(); ++i) {
    ET_CHECK(products[i].w.k == x.n_);
    prepare(x, products[i].w.dtype);
    add_tasks(&tasks, i, products[i].w.rows, columns_of(products[i], x));
  }
  pool_.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const Task& task = tasks[static_cast<size_t>(t)];
    run(x, products[static_cast<size_t>(task.product)], task.row_begin, task.row_end);
  });
}

void CpuBackend::rms_norm(const float* x, const float* w, float eps, Activations* y) {
  for_rows(y->rows(), y->n(), [&](int64_t r) { kernels_.rms_norm(x + r * y->n(), w, eps, y->n(), y->row(r)); });
}

}  // namespace expertree
