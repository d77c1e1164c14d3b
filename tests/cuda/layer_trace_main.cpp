// Layers with all their experts in one call, between copies and runs of other experts, for sanitizers.
//
//   expertree_cuda_layers SEED [WAIT]     status 1 if an output is wrong; WAIT: the number of one that is left out
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/runtime/cuda_dense.h"
#include "tests/cuda/trace_experts.h"
#include "tests/cuda/trace_main.h"

namespace {

using namespace expertree;

// Layer 0 is whole; layer 1's experts come and go in the slots that it leaves.
constexpr int32_t kLayers = 2, kExperts = 4, kSlots = 6, kUsed = 2, kRows = 3;
constexpr int64_t kCells = 8, kPast = 2;
constexpr int kHeads = 4, kHeadDim = kWidth / kHeads;
enum { kQuery, kRouter, kMatrices };

struct Device {
  explicit Device(const DeviceExpertsPlan& experts_plan, const DeviceDensePlan& dense_plan)
      : experts(experts_plan), dense(dense_plan) {
    dense.use_experts(experts);
  }
  cuda::CudaExperts experts;
  cuda::CudaDense dense;
};

class Trace {
 public:
  explicit Trace(unsigned seed) : random_(seed), experts_(random_experts(kLayers * kExperts, &random_)) {
    std::iota(slots_, slots_ + kSlots, 0);
    dense_plan_.matrices = {{DType::kF32, kWidth, kWidth}, {DType::kF32, kExperts, kWidth}};
    dense_plan_.max_rows = kRows;
    dense_plan_.max_k = kWidth;
    dense_plan_.max_outputs = kRows * 8 * kWidth;
    DeviceBlock block;
    block.n_embd = kWidth;
    DeviceAttentionLayer& attention = block.attention;
    attention.q = attention.k = attention.v = attention.output = kQuery;
    attention.n_heads = attention.n_kv_heads = kHeads;
    attention.head_dim_k = attention.head_dim_v = kHeadDim;
    attention.scale = 0.25f;
    attention.keys = attention.values = DType::kF32;
    block.router.matrix = kRouter;
    block.router.n_experts = kExperts;
    block.router.n_used = kUsed;
    block.mixture.layer = 0;
    dense_plan_.blocks = {block};
    dense_plan_.n_cells = kCells;
    dense_plan_.max_pairs = 2;
    dense_plan_.max_tails = kRows;
    for (const DeviceMatrix& m : dense_plan_.matrices) {
      weights_.emplace_back(static_cast<size_t>(m.rows * m.k));
      for (float& x : weights_.back()) x = number();
    }
    for (float& x : inputs_) x = number();
    for (float& x : past_) x = number();
  }

  // With the waits that there are, and nothing else under way.
  void learn() {
    Device device(expert_plan_, dense_plan_);
    load(&device);
    right_ = layer(&device.dense);
  }

  bool runs_right(int n_steps) {
    Device device(expert_plan_, dense_plan_);
    load(&device);
    for (int i = 0; i < n_steps; ++i) {
      if (random_() % 2 == 0) other_batch(&device.experts);
      if (random_() % 4 == 0) move_layer(&device.experts);
      if (layer(&device.dense) != right_) return false;
    }
    return true;
  }

 private:
  float number() { return static_cast<float>(static_cast<int>(random_() % 2001) - 1000) * 1e-3f; }

  void load(Device* device) {
    for (int m = 0; m < kMatrices; ++m) {
      device->dense.load(m, reinterpret_cast<const std::byte*>(weights_[static_cast<size_t>(m)].data()));
    }
    move_layer(&device->experts);
  }

  // Layer 0, whichever slots it had, to others.
  void move_layer(cuda::CudaExperts* experts) {
    std::shuffle(slots_, slots_ + kSlots, random_);
    for (int32_t e = 0; e < kExperts; ++e) {
      copy_expert(experts, expert_plan_, slots_[e], 0, experts_[static_cast<size_t>(e)]);
    }
    experts->publish(0, {slots_, kExperts});
  }

  // Of layer 1; nobody waits for half of them.
  void other_batch(cuda::CudaExperts* experts) {
    const auto e = static_cast<int32_t>(random_() % kExperts);
    const int32_t slot = slots_[kExperts + random_() % (kSlots - kExperts)];
    copy_expert(experts, expert_plan_, slot, 1, experts_[static_cast<size_t>(kExperts + e)]);
    const int32_t rows[] = {0, 2};
    const DeviceRows run[] = {{slot, e, 2, rows}};
    experts->begin(1, inputs_, kRows);
    experts->run(run);
    if (random_() % 2 == 0) experts->wait();
  }

  std::vector<float> layer(cuda::CudaDense* dense) {
    constexpr float kAngles[2 * kRows] = {1, 0.5f, 0.25f, 1, 0.5f, 0.25f};
    constexpr int32_t kOwnCells[kRows] = {kPast, kPast + 1, kPast + 2};
    constexpr int32_t kNone[kRows] = {0, 0, 0};
    constexpr int32_t kPrefix[kRows] = {kPast + 1, kPast + 2, kPast + 3};
    const DeviceAngles angles{2, kAngles, kAngles};
    const auto* past = reinterpret_cast<const std::byte*>(past_);
    dense->begin(inputs_, kRows, kWidth);
    dense->set_rows({angles, angles, nullptr, kOwnCells, kNone, kNone, kPrefix, kNone, kNone, {}});
    dense->put_cells(0, 0, kPast, past, past);
    dense->block(0);
    dense->mixture(0);
    dense->residual();
    dense->run();
    const float* behind = dense->wait() + kDeviceCallHead + dense_plan_.blocks[0].outputs(kRows).size;
    return {behind, behind + kRows * kWidth};
  }

  std::mt19937 random_;
  DeviceExpertsPlan expert_plan_ = trace_plan(kLayers, kExperts, kSlots, kRows, kRows* kUsed);
  DeviceDensePlan dense_plan_;
  std::vector<TraceExpert> experts_;
  int32_t slots_[kSlots];  // the first kExperts are layer 0's
  std::vector<std::vector<float>> weights_;
  float inputs_[kRows * kWidth];
  float past_[kPast * kWidth];
  std::vector<float> right_;
};

}  // namespace

int main(int argc, char** argv) { return expertree::run_trace<Trace>(argc, argv); }
