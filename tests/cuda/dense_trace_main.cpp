// Random calls of dense products and of attention, for sanitizers.
//
//   expertree_cuda_dense SEED [WAIT]     status 1 if an output is wrong; WAIT: the number of one that is left out
#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "cpp/tensor/blocks.h"
#include "cpp/tensor/half.h"
#include "cuda/runtime/cuda_dense.h"
#include "tests/cuda/trace_main.h"

namespace {

using namespace expertree;

constexpr int64_t kWidth = 64, kFf = 32, kRows = 3;
// Three times what a loading buffer holds.
constexpr int64_t kTallRows = 3 * (int64_t{4} << 20) / (kWidth * 4);
constexpr int64_t kCells = 40, kPast = 33;
enum { kGate, kUp, kDown, kQuery, kRouter, kTall, kMatrices };
constexpr int32_t kExperts = 8;
// A feed-forward part and a product, a product, the tall one, blocks: with a feed-forward part, with a router, with neither,
// over cells of each format; the best logits of a head; these behind two blocks.
enum { kUnit, kOne, kPieces, kAttend, kAttendHalf, kAttendInt8, kBest, kChain, kKinds };
constexpr int32_t kMost = 5;
constexpr DType kCellTypes[] = {DType::kF32, DType::kF16, DType::kQ8_0};
constexpr int kHeads = 4, kHeadDim = kWidth / kHeads;

class Trace {
 public:
  explicit Trace(unsigned seed) : random_(seed) {
    const int64_t shapes[kMatrices][2] = {
        {kFf, kWidth}, {kFf, kWidth}, {kWidth, kFf}, {kWidth, kWidth}, {kExperts, kWidth}};
    for (int m = 0; m < kTall; ++m) {
      plan_.matrices.push_back({DType::kF32, shapes[m][0], shapes[m][1], 1.0f, m == kQuery ? bias_ : nullptr});
    }
    plan_.matrices.push_back({DType::kF32, kTallRows, kWidth});
    plan_.max_rows = kRows;
    plan_.max_k = kWidth;
    plan_.max_hidden = kFf;
    plan_.max_outputs = kTallRows + kRows * 8 * kWidth;
    DeviceBlock block;
    block.n_embd = kWidth;
    block.attention_norm = {bias_, bias_};
    block.post_attention_norm = block.feed_forward_norm.weight = bias_;
    DeviceAttentionLayer& attention = block.attention;
    attention.q = attention.k = attention.v = attention.output = kQuery;
    attention.n_heads = attention.n_kv_heads = kHeads;
    attention.head_dim_k = attention.head_dim_v = kHeadDim;
    attention.scale = 0.25f;
    attention.windowed = true;
    for (const DType type : kCellTypes) {
      attention.keys = attention.values = type;
      plan_.blocks.push_back(block);
    }
    plan_.blocks[0].gate = kGate;
    plan_.blocks[0].up = kUp;
    plan_.blocks[0].down = kDown;
    DeviceRouter& router = plan_.blocks[1].router;
    router.matrix = kRouter;
    router.own_norm = true;
    router.n_experts = kExperts;
    router.n_used = 2;
    plan_.head = {.matrix = kQuery, .n_embd = kWidth, .norm = {bias_, bias_}, .softcap = 3.0f};
    plan_.n_cells = kCells;
    plan_.max_pairs = 2;
    plan_.max_tails = kRows;
    for (float& x : past_) x = number();
    for (uint16_t& x : past_halves_) x = float_to_half(number());
    for (BlockQ8_0& x : past_blocks_) {
      x.d = float_to_half(number());
      for (int8_t& q : x.qs) q = static_cast<int8_t>(random_() % 255 - 127);
    }
    for (float& x : bias_) x = number();
    for (const DeviceMatrix& m : plan_.matrices) {
      weights_.emplace_back(static_cast<size_t>(m.rows * m.k));
      for (float& x : weights_.back()) x = number();
    }
    for (float& x : inputs_) x = number();
  }

  // With the waits that there are, and what each call gives with nothing else under way.
  void learn() {
    cuda::CudaDense device(plan_);
    load(&device);
    for (int kind = 0; kind < kKinds; ++kind) right_.push_back(call(&device, kind));
  }

  bool runs_right(int n_calls) {
    cuda::CudaDense device(plan_);
    load(&device);
    for (int i = 0; i < n_calls; ++i) {
      constexpr int kQuick[] = {kUnit, kOne, kAttend, kAttendHalf, kAttendInt8, kBest, kChain};
      const int kind = i == 0 ? kPieces : kQuick[random_() % std::size(kQuick)];
      if (call(&device, kind) != right_[static_cast<size_t>(kind)]) return false;
      if (random_() % 3 == 0) {  // nobody waits for it
        device.begin(inputs_, kRows, kWidth);
        device.product(kQuery);
        device.run();
      }
    }
    return true;
  }

 private:
  float number() { return static_cast<float>(static_cast<int>(random_() % 2001) - 1000) * 1e-3f; }

  void load(cuda::CudaDense* device) {
    for (int m = 0; m < kMatrices; ++m) {
      device->load(m, reinterpret_cast<const std::byte*>(weights_[static_cast<size_t>(m)].data()));
    }
  }

  std::vector<float> call(cuda::CudaDense* device, int kind) {
    device->begin(inputs_, kind == kPieces ? 1 : kRows, kWidth);
    if (kind == kUnit) device->feed_forward(kGate, kUp, kDown);
    if (kind == kPieces) device->product(kTall);
    if (kind >= kAttend && kind < kBest) attend(device, kind - kAttend);
    if (kind == kChain) {
      set_rows(device);
      add_block(device, 0);
      add_block(device, 0);
    }
    if (kind == kBest || kind == kChain) device->best(kMost);
    if (kind == kUnit || kind == kOne) device->product(kQuery);
    device->run();
    const float* outputs = device->wait();
    constexpr int64_t kSizes[] = {2 * kRows * kWidth, kRows * kWidth, kTallRows};
    std::vector<float> all(outputs, outputs + (kind < kAttend ? kSizes[kind] : size_of(kind)));
    if (kind == kAttendHalf) blank_gaps(plan_.blocks[1], all.data() + kDeviceCallHead);
    return all;
  }

  // What lies between the outputs of a block with a router is nobody's.
  static void blank_gaps(const DeviceBlock& block, float* outputs) {
    const DeviceBlockOutputs at = block.outputs(kRows);
    const int64_t n_pairs = kRows * block.router.n_used;
    std::fill(outputs + at.weights + n_pairs, outputs + at.ids, 0.0f);
    std::fill(outputs + at.ids + n_pairs, outputs + at.not_finite, 0.0f);
    std::fill(outputs + at.not_finite + 1, outputs + at.size, 0.0f);
  }

  int64_t size_of(int kind) const {
    const auto block = [this](int i) { return plan_.blocks[static_cast<size_t>(i)].outputs(kRows).size; };
    const int64_t best = DeviceHead::outputs(kRows, kMost).size;
    if (kind == kBest) return best;
    if (kind == kChain) return kDeviceCallHead + 2 * block(0) + best;
    return kDeviceCallHead + block(kind - kAttend) + kRows * kWidth;
  }

  // Rows of a tree behind a past of kPast cells.
  void set_rows(cuda::CudaDense* device) {
    constexpr float kAngles[2 * kRows] = {1, 0.5f, 0.25f, 1, 0.5f, 0.25f};
    constexpr int32_t kOwnCells[kRows] = {kPast, kPast + 1, kPast + 2};
    constexpr int32_t kFirst[kRows] = {0, 0, 2};
    constexpr int32_t kBase[kRows] = {0, 0, 0};
    constexpr int32_t kPrefix[kRows] = {kPast + 1, kPast + 1, kPast + 1};
    constexpr int32_t kTail[kRows] = {0, 0, 1};
    constexpr int32_t kTailSizes[kRows] = {0, 1, 1};
    constexpr int32_t kTails[2] = {kPast + 1, kPast + 2};
    const DeviceAngles angles{2, kAngles, kAngles};
    device->set_rows({angles, angles, kAngles, kOwnCells, kFirst, kBase, kPrefix, kTail, kTailSizes, kTails});
  }

  // Its past comes anew.
  void add_block(cuda::CudaDense* device, int layer) {
    const void* past[] = {past_, past_halves_, past_blocks_};
    const auto* rows = static_cast<const std::byte*>(past[layer]);
    device->put_cells(layer, 0, kPast, rows, rows);
    device->block(layer);
  }

  void attend(cuda::CudaDense* device, int layer) {
    set_rows(device);
    add_block(device, layer);
    device->residual();
  }

  std::mt19937 random_;
  DeviceDensePlan plan_;
  float bias_[kWidth];
  float inputs_[kRows * kWidth];
  float past_[kCells * kWidth];
  uint16_t past_halves_[kCells * kWidth];
  BlockQ8_0 past_blocks_[kCells * kHeads];  // heads are shorter than a block
  std::vector<std::vector<float>> weights_;
  std::vector<std::vector<float>> right_;
};

}  // namespace

int main(int argc, char** argv) { return expertree::run_trace<Trace>(argc, argv); }
