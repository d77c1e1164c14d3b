// A mixture of experts with some of them on a device. It computes what it has while the CPU runs its own share and while
// further experts are copied to it.
#include <algorithm>

#include "cpp/experts/vram_step.h"
#include "cpp/model/forward.h"

namespace expertree {

void Forward::mixture_with_device(const Chunk& chunk, int64_t layer, std::span<const int32_t> used) {
  const MoeWeights& w = weights(layer).moe;
  const auto moe_layer = static_cast<int32_t>(w.moe_layer);
  on_device_.clear();
  VramStep step(*m_.vram_, moe_layer, used, rows_of(used));
  ExpertLease lease = ask_for_experts(chunk, layer, used, step.hits());
  Activations& inputs = expert_inputs(chunk, w);
  run_on_device(step, inputs, step.hits());
  hint_next_layer(chunk, layer);
  begin_beside(chunk, layer);
  std::vector<int32_t> copied;
  std::vector<int32_t> kept;
  for (auto wave = next_wave(chunk, layer, &lease); !wave.empty(); wave = next_wave(chunk, layer, &lease)) {
    copied.clear();
    kept.clear();
    for (const int32_t e : wave) (step.fetch(e) ? copied : kept).push_back(e);
    run_on_device(step, inputs, copied);
    if (kept.empty()) continue;
    run_experts(w, inputs, kept);
    for (const int32_t e : kept) step.offer(e);
  }
  end_beside(chunk, layer);
  gather_from_device(step);
}

// What others learn of a mixture that a trip has run as a whole.
void Forward::note_mixture(const Chunk& chunk, int64_t layer) {
  const std::vector<int32_t> used = find_experts(chunk, layer);
  VramStep step(*m_.vram_, static_cast<int32_t>(weights(layer).moe.moe_layer), used, rows_of(used));
  ask_for_experts(chunk, layer, used, step.hits());
  step.ran_whole(chunk.n * h_.moe.n_used);
}

// Begins to run experts that are on the device.
void Forward::run_on_device(VramStep& step, Activations& inputs, std::span<const int32_t> experts) {
  std::vector<DeviceRows> runs;
  const auto flush = [&] {
    if (!runs.empty()) step.run(inputs.data(), inputs.rows(), runs);
    runs.clear();
  };
  int64_t n_pending = 0;
  for (const int32_t e : experts) {
    const int32_t begin = group_begin_[static_cast<size_t>(e)];
    const int64_t n = group_begin_[static_cast<size_t>(e) + 1] - begin;
    if (!step.has_room(n_pending + n)) {
      flush();
      gather_from_device(step);
      n_pending = 0;
    }
    runs.push_back({step.slot_of(e), e, n, group_rows_.data() + begin});
    on_device_.push_back(e);
    n_pending += n;
  }
  flush();
}

// Waits for the device and puts its outputs where sum_experts finds them.
void Forward::gather_from_device(VramStep& step) {
  if (on_device_.empty()) return;
  const float* from = step.wait();
  for (const int32_t e : on_device_) {
    for (int32_t i = group_begin_[static_cast<size_t>(e)]; i < group_begin_[static_cast<size_t>(e) + 1]; ++i) {
      std::copy_n(from, h_.n_embd, outputs_.data() + group_slots_[static_cast<size_t>(i)] * h_.n_embd);
      from += h_.n_embd;
    }
  }
  on_device_.clear();
}

}  // namespace expertree
