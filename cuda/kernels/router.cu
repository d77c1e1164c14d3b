// From a router's scores to experts and weights, as cpp/model/router.cpp: a warp for each row.
#include "cpp/kernels/canonical_math.h"
#include "cuda/kernels/row_count.cuh"
#include "cuda/kernels/row_kernels.h"
#include "cuda/kernels/row_sums.cuh"

namespace expertree::cuda {
namespace {

constexpr int kMostExperts = 1024;
constexpr int kMostUsed = 64;
constexpr int kMostGroups = 64;
constexpr int kInfinityBits = 0x7f800000;
constexpr float kMinWeightSum = 0x1p-14f;  // as cpp/model/hyperparameters.h

__device__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// C7, in place.
__device__ void softmax(float* p, int n) {
  const int lane = static_cast<int>(threadIdx.x);
  float most = minus_infinity();
  for (int i = lane; i < n; i += 32) most = p[i] > most ? p[i] : most;
  most = gpu_warp_max(most);
  for (int i = lane; i < n; i += 32) p[i] = canonical_exp(__fsub_rn(p[i], most));
  __syncwarp();
  const float sum = sum16(p, n);
  __syncwarp();
  for (int i = lane; i < n; i += 32) p[i] = __fdiv_rn(p[i], sum);
  __syncwarp();
}

__device__ void sigmoid(float* p, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32) p[i] = canonical_gate(1.0f, p[i]);
  __syncwarp();
}

// Sets the experts outside the best groups to -inf. A group's score is the sum of its two best; ties go to the lower one.
__device__ void mask_groups(const Router& router, float* selection, float* group_scores) {
  const int size = router.n_experts / router.n_groups;
  for (int g = static_cast<int>(threadIdx.x); g < router.n_groups; g += 32) {
    float best = minus_infinity();
    float second = minus_infinity();
    for (int i = 0; i < size; ++i) {
      const float s = selection[g * size + i];
      if (s > best) {
        second = best;
        best = s;
      } else if (s > second) {
        second = s;
      }
    }
    group_scores[g] = __fadd_rn(best, second);
  }
  __syncwarp();
  for (int g = static_cast<int>(threadIdx.x); g < router.n_groups; g += 32) {
    int before = 0;
    for (int other = 0; other < router.n_groups; ++other) {
      before += group_scores[other] > group_scores[g] || (group_scores[other] == group_scores[g] && other < g);
    }
    if (before < router.n_groups_used) continue;
    for (int i = 0; i < size; ++i) selection[g * size + i] = minus_infinity();
  }
  __syncwarp();
}

// Integers that order as floats do, both zeros alike.
__device__ unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The best expert that is not taken; ties to the lower id. `taken` has a bit for each expert of this lane.
__device__ int best_expert(const float* selection, int n, unsigned* taken) {
  const int lane = static_cast<int>(threadIdx.x);
  unsigned long long best = 0;
  for (int i = lane, place = 0; i < n; i += 32, ++place) {
    if ((*taken >> place & 1u) != 0) continue;
    const unsigned long long key =
        static_cast<unsigned long long>(ordered_bits(selection[i])) << 32 | static_cast<unsigned>(~i);
    best = key > best ? key : best;
  }
  for (int step = 16; step > 0; step /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0u, best, step);
    best = other > best ? other : best;
  }
  const int expert = static_cast<int>(~static_cast<unsigned>(best));
  if (expert % 32 == lane) *taken |= 1u << (expert / 32);
  return expert;
}

struct RouterArgs {
  Router router;
  float* scores;
  int32_t* ids;
  float* weights;
  int32_t* not_finite;
  const int32_t* n_rows_device;
};

__global__ void __launch_bounds__(32) choose_experts(RouterArgs args) {
  GPU_SHARED(float, scores, kMostExperts);
  GPU_SHARED(float, selection, kMostExperts);
  GPU_SHARED(float, group_scores, kMostGroups);
  GPU_SHARED(float, weights, kMostUsed);
  if (!is_row(blockIdx.x, args.n_rows_device)) return;
  const Router& router = args.router;
  const int n = router.n_experts;
  const int lane = static_cast<int>(threadIdx.x);
  float* row = args.scores + static_cast<int64_t>(blockIdx.x) * n;
  for (int i = lane; i < n; i += 32) {
    scores[i] = row[i];
    if ((__float_as_int(scores[i]) & 0x7fffffff) >= kInfinityBits) atomicExch(args.not_finite, 1);
  }
  if (router.gating == RouterGating::kSoftmax) softmax(scores, n);
  if (router.gating == RouterGating::kSigmoid) sigmoid(scores, n);
  for (int i = lane; i < n; i += 32) {
    row[i] = scores[i];
    selection[i] = router.selection_bias != nullptr ? __fadd_rn(scores[i], router.selection_bias[i]) : scores[i];
  }
  __syncwarp();
  if (router.n_groups > 1) mask_groups(router, selection, group_scores);
  unsigned taken = 0;
  const int64_t out = static_cast<int64_t>(blockIdx.x) * router.n_used;
  for (int rank = 0; rank < router.n_used; ++rank) {
    const int expert = best_expert(selection, n, &taken);
    if (lane != 0) continue;
    args.ids[out + rank] = expert;
    weights[rank] = scores[expert];
  }
  __syncwarp();
  if (router.gating == RouterGating::kSoftmaxOfChosen) softmax(weights, router.n_used);
  if (router.gating == RouterGating::kSigmoidOfChosen) sigmoid(weights, router.n_used);
  float sum = 0.0f;
  for (int i = 0; i < router.n_used; ++i) sum = __fadd_rn(sum, weights[i]);
  const float divisor = sum < kMinWeightSum ? kMinWeightSum : sum;
  for (int i = lane; i < router.n_used; i += 32) {
    const float weight = router.renormalize ? __fdiv_rn(weights[i], divisor) : weights[i];
    args.weights[out + i] = __fmul_rn(weight, router.weights_scale);
  }
}

}  // namespace

cudaError_t launch_router(const Router& router, float* scores, int64_t n_rows, int32_t* ids, float* weights,
                          int32_t* not_finite, cudaStream_t stream, const int32_t* n_rows_device) {
  if (router.n_experts > kMostExperts || router.n_used > kMostUsed || router.n_used > router.n_experts ||
      router.n_groups < 1 || router.n_groups > kMostGroups || router.n_experts % router.n_groups != 0) {
    return cudaErrorInvalidValue;
  }
  if (n_rows == 0) return cudaSuccess;
  return gpu_launch(choose_experts, dim3(static_cast<unsigned>(n_rows)), dim3(32), 0, stream,
                    RouterArgs{router, scores, ids, weights, not_finite, n_rows_device});
}

}  // namespace expertree::cuda
