// Random copies and runs of experts, for sanitizers.
//
//   expertree_cuda_experts SEED [WAIT]     status 1 if an output is wrong; WAIT: the number of one that is left out
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "cuda/runtime/cuda_experts.h"
#include "tests/cuda/trace_experts.h"
#include "tests/cuda/trace_main.h"

namespace {

using namespace expertree;

constexpr int32_t kExperts = 4, kSlots = 3, kInputs = 3, kLayers = 2, kPairs = 16;

class Trace {
 public:
  explicit Trace(unsigned seed) : random_(seed), experts_(random_experts(kLayers * kExperts, &random_)) {
    for (float& x : inputs_) x = static_cast<float>(static_cast<int>(random_() % 2001) - 1000) * 1e-3f;
  }

  // Each expert alone.
  void learn() {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t e = 0; e < kExperts; ++e) right_.push_back(alone(layer, e));
    }
  }

  bool runs_right(int n_batches) {
    cuda::CudaExperts device(plan_);
    for (int i = 0; i < n_batches; ++i) {
      if (!batch(&device)) return false;
    }
    return true;
  }

 private:
  void copy(cuda::CudaExperts* device, int32_t slot, int32_t layer, int32_t e) {
    copy_expert(device, plan_, slot, layer, experts_[static_cast<size_t>(layer * kExperts + e)]);
  }

  std::vector<float> alone(int32_t layer, int32_t e) {
    cuda::CudaExperts device(plan_);
    copy(&device, 0, layer, e);
    device.begin(layer, inputs_, kInputs);
    const int32_t rows[kInputs] = {0, 1, 2};
    const DeviceRows run[] = {{0, e, kInputs, rows}};
    device.run(run);
    const float* outputs = device.wait();
    return {outputs, outputs + kInputs * kWidth};
  }

  // Of a batch that somebody waits for.
  bool batch(cuda::CudaExperts* device) {
    const auto layer = static_cast<int32_t>(random_() % kLayers);
    std::vector<std::pair<int32_t, int32_t>> ran;  // expert, row
    device->begin(layer, inputs_, kInputs);
    for (unsigned step = 0; step < 3; ++step) {
      const auto slot = static_cast<int32_t>(random_() % kSlots);
      const auto copied = static_cast<int32_t>(random_() % (kLayers * kExperts));
      if (random_() % 3 != 0) {
        copy(device, slot, copied / kExperts, copied % kExperts);
        held_[slot] = copied;
      }
      const auto found = held_.find(slot);
      if (found == held_.end() || found->second / kExperts != layer) continue;
      const int32_t e = found->second % kExperts;
      const int32_t rows[] = {static_cast<int32_t>(random_() % kInputs), static_cast<int32_t>(random_() % kInputs)};
      const DeviceRows run[] = {{slot, e, 2, rows}};
      device->run(run);
      for (const int32_t row : rows) ran.emplace_back(e, row);
    }
    if (random_() % 4 == 0) return true;
    const float* outputs = device->wait();
    for (const auto& [e, row] : ran) {
      const float* right = right_[static_cast<size_t>(layer * kExperts + e)].data() + row * kWidth;
      if (std::memcmp(outputs, right, kWidth * sizeof(float)) != 0) return false;
      outputs += kWidth;
    }
    return true;
  }

  std::mt19937 random_;
  DeviceExpertsPlan plan_ = trace_plan(kLayers, kExperts, kSlots, kInputs, kPairs);
  std::vector<TraceExpert> experts_;
  float inputs_[kInputs * kWidth];
  std::vector<std::vector<float>> right_;
  std::map<int32_t, int32_t> held_;  // slot: layer * kExperts + expert
};

}  // namespace

int main(int argc, char** argv) { return expertree::run_trace<Trace>(argc, argv); }
