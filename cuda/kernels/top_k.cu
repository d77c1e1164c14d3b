// The best k of each row: blocks sort pieces of it in shared memory and keep k of each, until one piece is left. Keys hold
// value and id and are all different, so the result does not depend on how a row is cut.
#include <algorithm>

#include "cuda/gpu/gpu.h"
#include "cuda/kernels/row_count.cuh"
#include "cuda/kernels/top_k_kernels.h"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 2048;  // keys

using Key = unsigned long long;

// Larger for larger values, then for lower ids; NaN below all numbers. Never 0.
__device__ Key key_of(float value, int64_t id) {
  const unsigned bits = __float_as_uint(__fadd_rn(value, 0.0f));
  unsigned order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if ((bits & 0x7fffffffu) > 0x7f800000u) order = 0;
  return static_cast<Key>(order) << 32 | static_cast<unsigned>(~static_cast<unsigned>(id));
}

struct TopKArgs {
  const float* logits;
  int64_t n_logits;  // of a row
  const Key* in;  // [rows][in_stride]; null: keys of the logits
  int64_t in_stride;
  int64_t n;  // keys of a row
  int32_t k;
  Key* out;  // [rows][out_stride]: k of each piece; null: the last pass
  int64_t out_stride;
  float* values;
  int32_t* ids;
  int32_t* not_sound;  // null: not asked
  const int32_t* n_rows_device;
};

// Bitonic, largest first. Every thread of the block calls.
__device__ void sort_piece(Key* keys) {
  for (int size = 2; size <= kPiece; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < kPiece / 2; pair += kThreads) {
        const int i = pair / step * 2 * step + pair % step;
        const bool descending = (i & size) == 0;
        const Key a = keys[i];
        const Key b = keys[i + step];
        if ((a < b) == descending) {
          keys[i] = b;
          keys[i + step] = a;
        }
      }
    }
  }
  __syncthreads();
}

// Neither NaN nor +inf.
__device__ bool is_sound(float value) { return value <= 3.402823466e38f; }

__global__ void __launch_bounds__(kThreads) keep_best(TopKArgs args) {
  GPU_SHARED(Key, keys, kPiece);
  const int64_t row = blockIdx.y;
  if (!is_row(row, args.n_rows_device)) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kPiece;
  const float* logits = args.logits + row * args.n_logits;
  for (int i = static_cast<int>(threadIdx.x); i < kPiece; i += kThreads) {
    const int64_t at = first + i;
    Key key = 0;
    if (at < args.n && args.in != nullptr) {
      key = args.in[row * args.in_stride + at];
    } else if (at < args.n) {
      const float value = logits[at];
      if (args.not_sound != nullptr && !is_sound(value)) atomicOr(args.not_sound, 1);
      key = key_of(value, at);
    }
    keys[i] = key;
  }
  sort_piece(keys);
  for (int i = static_cast<int>(threadIdx.x); i < args.k; i += kThreads) {
    if (args.out != nullptr) {
      args.out[row * args.out_stride + static_cast<int64_t>(blockIdx.x) * args.k + i] = keys[i];
    } else {
      const auto id = static_cast<int32_t>(~static_cast<unsigned>(keys[i]));
      args.ids[row * args.k + i] = id;
      args.values[row * args.k + i] = logits[id];
    }
  }
}

int64_t pieces_of(int64_t n) { return (n + kPiece - 1) / kPiece; }

}  // namespace

int64_t top_k_scratch_bytes(int64_t n_rows, int64_t n, int32_t k) {
  const int64_t first = pieces_of(n) * k;
  return n_rows * (first + pieces_of(first) * k) * static_cast<int64_t>(sizeof(Key));
}

cudaError_t launch_top_k(const float* logits, int64_t n_rows, int64_t n, int32_t k, float* values, int32_t* ids,
                         int32_t* not_sound, void* scratch, cudaStream_t stream, const int32_t* n_rows_device) {
  if (k < 1 || k > kMaxTopK || k > n) return cudaErrorInvalidValue;
  if (n_rows == 0) return cudaSuccess;
  // Two halves of scratch take turns.
  Key* halves[2] = {static_cast<Key*>(scratch), static_cast<Key*>(scratch) + n_rows * pieces_of(n) * k};
  TopKArgs args{logits, n, nullptr, 0, n, k, nullptr, 0, values, ids, not_sound, n_rows_device};
  for (int pass = 0;; ++pass) {
    const int64_t pieces = pieces_of(args.n);
    args.out = pieces > 1 ? halves[pass % 2] : nullptr;
    args.out_stride = pieces * k;
    const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(n_rows));
    const cudaError_t error = gpu_launch(keep_best, grid, dim3(kThreads), 0, stream, args);
    if (error != cudaSuccess || pieces == 1) return error;
    args.in = args.out;
    args.in_stride = args.out_stride;
    args.n = args.out_stride;
  }
}

}  // namespace expertree::cuda
