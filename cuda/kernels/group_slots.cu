// Slots ordered by expert: a counting sort by one block, in which each thread keeps its experts' slots in order. A batch
// has a few thousand slots at most, so every thread reads all of them.
#include "cuda/gpu/gpu.h"
#include "cuda/kernels/expert_kernels.h"

namespace expertree::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostExperts = 1024;
constexpr int kPerThread = kMostExperts / kThreads;

// What comes before an expert: slots, active experts, missing experts.
struct Counts {
  int slots;
  int active;
  int missing;
};
__device__ Counts operator+(const Counts& a, const Counts& b) {
  return {a.slots + b.slots, a.active + b.active, a.missing + b.missing};
}

// The sum over the threads before this one, and over all.
__device__ Counts sum_before(const Counts& mine, Counts* total) {
  GPU_SHARED(Counts, of_warp, kWarps);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  Counts sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    Counts other;
    other.slots = __shfl_up_sync(~0u, sum.slots, static_cast<unsigned>(step));
    other.active = __shfl_up_sync(~0u, sum.active, static_cast<unsigned>(step));
    other.missing = __shfl_up_sync(~0u, sum.missing, static_cast<unsigned>(step));
    if (lane >= step) sum = sum + other;
  }
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  Counts before{0, 0, 0};
  *total = before;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = *total;
    *total = *total + of_warp[w];
  }
  return {before.slots + sum.slots - mine.slots, before.active + sum.active - mine.active,
          before.missing + sum.missing - mine.missing};
}

struct GroupArgs {
  const int32_t* chosen;
  int32_t n_slots;
  int32_t n_used;
  int32_t n_experts;
  bool x_per_slot;
  const void* const* expert_data;
  ExpertGroupsOut out;
  const int32_t* n_rows_device;
};

__global__ void __launch_bounds__(kThreads) group_slots(GroupArgs args) {
  const int n_slots = args.n_rows_device == nullptr ? args.n_slots : *args.n_rows_device * args.n_used;
  const int per_thread = (args.n_experts + kThreads - 1) / kThreads;
  const int first = static_cast<int>(threadIdx.x) * per_thread;
  int count[kPerThread] = {};
  for (int s = 0; s < n_slots; ++s) {
    const int expert = args.chosen[s] - first;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) count[i] += i < per_thread && expert == i;
  }
  Counts mine{0, 0, 0};
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (count[i] == 0) continue;
    mine.slots += count[i];
    ++(args.expert_data[first + i] != nullptr ? mine.active : mine.missing);
  }
  Counts total;
  Counts at = sum_before(mine, &total);
  if (threadIdx.x == 0) {
    *args.out.n_active = total.active;
    *args.out.n_missing = total.missing;
    args.out.begin[args.n_experts] = total.slots;
  }
  int place[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    place[i] = at.slots;
    if (i < per_thread && first + i < args.n_experts) args.out.begin[first + i] = at.slots;
    if (count[i] == 0) continue;
    at.slots += count[i];
    if (args.expert_data[first + i] != nullptr) {
      args.out.active[at.active++] = first + i;
    } else {
      args.out.missing[at.missing++] = first + i;
    }
  }
  for (int s = 0; s < n_slots; ++s) {
    const int expert = args.chosen[s] - first;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (i >= per_thread || expert != i) continue;
      args.out.slot[place[i]] = s;
      args.out.x_row[place[i]] = args.x_per_slot ? s : s / args.n_used;
      ++place[i];
    }
  }
}

}  // namespace

cudaError_t launch_group_slots(const int32_t* chosen, int32_t n_rows, int32_t n_used, int32_t n_experts,
                               bool x_per_slot, const void* const* expert_data, const ExpertGroupsOut& out,
                               cudaStream_t stream, const int32_t* n_rows_device) {
  if (n_experts < 1 || n_experts > kMostExperts) return cudaErrorInvalidValue;
  const GroupArgs args{chosen, n_rows * n_used, n_used, n_experts, x_per_slot, expert_data, out, n_rows_device};
  return gpu_launch(group_slots, dim3(1), dim3(kThreads), 0, stream, args);
}

}  // namespace expertree::cuda
