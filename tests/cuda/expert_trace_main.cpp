// Random copies and runs of experts, for sanitizers.
//
//   expertree_cuda_experts SEED [WAIT]     status 1 if an output is wrong; WAIT: the number of one that is left out
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "cuda/emulation/control.h"
#include "cuda/kernels/packed_layout.h"
#include "cuda/runtime/cuda_experts.h"

extern "C" void expertree_drop_wait(int wait);

namespace {

using namespace expertree;

constexpr int64_t kWidth = 64, kFf = 32;
constexpr int32_t kExperts = 4, kSlots = 3, kInputs = 3, kLayers = 2, kPairs = 16;

struct Expert {
  std::vector<std::byte> bytes[kExpertMatrices];
};

// Q8_0: a half of about 0.01, 32 signed bytes.
std::vector<std::byte> random_rows(int64_t rows, int64_t k, std::mt19937* random) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes(DType::kQ8_0, k)));
  for (std::byte& b : bytes) b = static_cast<std::byte>((*random)() & 255);
  for (size_t at = 0; at < bytes.size(); at += 34) {
    bytes[at] = std::byte{0x1f};
    bytes[at + 1] = std::byte{0x21};
  }
  return bytes;
}

DeviceExpertsPlan plan() {
  DeviceExpertsPlan plan;
  DeviceExpertLayer layer;
  layer.n_experts = kExperts;
  layer.matrices[0] = layer.matrices[1] = {DType::kQ8_0, kFf, kWidth, nullptr, nullptr};
  layer.matrices[2] = {DType::kQ8_0, kWidth, kFf, nullptr, nullptr};
  plan.layers.assign(kLayers, layer);
  uint64_t bytes = 0;
  for (const DeviceExpertLayer::Matrix& w : layer.matrices) {
    bytes += static_cast<uint64_t>(cuda::packed_layout(w.dtype, w.rows, w.k).bytes);
  }
  plan.slot_bytes = {(bytes + 255) / 256 * 256};
  plan.n_slots = {kSlots};
  plan.n_embd = kWidth;
  plan.max_inputs = kInputs;
  plan.max_pairs = kPairs;
  return plan;
}

class Trace {
 public:
  explicit Trace(unsigned seed) : random_(seed), experts_(kLayers * kExperts) {
    for (Expert& expert : experts_) {
      for (int m = 0; m < kExpertMatrices; ++m) {
        expert.bytes[m] = random_rows(m == 2 ? kWidth : kFf, m == 2 ? kFf : kWidth, &random_);
      }
    }
    for (float& x : inputs_) x = static_cast<float>(static_cast<int>(random_() % 2001) - 1000) * 1e-3f;
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
    std::byte* staged = device->stage(layer);
    for (int m = 0; m < kExpertMatrices; ++m) {
      const std::vector<std::byte>& bytes = experts_[static_cast<size_t>(layer * kExperts + e)].bytes[m];
      std::memcpy(staged + plan_.layers[0].offset_of(m), bytes.data(), bytes.size());
    }
    device->copy(slot, layer);
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
  DeviceExpertsPlan plan_ = plan();
  std::vector<Expert> experts_;
  float inputs_[kInputs * kWidth];
  std::vector<std::vector<float>> right_;
  std::map<int32_t, int32_t> held_;  // slot: layer * kExperts + expert
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  Trace trace(static_cast<unsigned>(std::atoi(argv[1])));
  expertree_drop_wait(argc > 2 ? std::atoi(argv[2]) : 0);
  if (!trace.runs_right(12)) {
    std::puts("an output is wrong");
    return 1;
  }
  const std::string left = emu::leaks();
  if (!left.empty()) std::printf("left behind: %s\n", left.c_str());
  return left.empty() ? 0 : 1;
}
