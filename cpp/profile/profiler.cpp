#include "cpp/profile/profiler.h"

#include <algorithm>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

namespace expertree {

Profiler::Profiler(const ProfileShape& shape, int64_t max_events)
    : shape_(shape), max_events_(max_events), begin_ns_(now_ns()) {
  tables_.layer_ns.resize(static_cast<size_t>(shape.n_layers) * kNumStepKinds * kNumZones);
  tables_.resident.resize(static_cast<size_t>(shape.n_moe_layers * shape.n_experts));
}

int32_t Profiler::thread_index() {
  const auto [found, is_new] =
      threads_.emplace(std::this_thread::get_id(), static_cast<int32_t>(thread_end_ns_.size()));
  if (is_new) thread_end_ns_.push_back(begin_ns_);
  return found->second;
}

void Profiler::add(const StepRecorder& recorder, const StepDetails& details, std::span<const uint8_t> is_resident) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  const int32_t thread = thread_index();
  int64_t& last_end = thread_end_ns_[static_cast<size_t>(thread)];
  add_events(recorder, thread);
  tables_.steps.push_back({.kind = details.kind,
                           .session = details.session,
                           .thread = thread,
                           .begin_ns = recorder.begin_ns(),
                           .end_ns = recorder.end_ns(),
                           .outside_ns = std::max<int64_t>(0, recorder.begin_ns() - last_end),
                           .n_passes = recorder.n_passes(),
                           .zone_ns = recorder.zone_ns(),
                           .counters = details.counters,
                           .n_nodes = std::ssize(details.nodes),
                           .n_routed = std::ssize(recorder.tokens())});
  last_end = recorder.end_ns();
  const std::vector<int64_t>& layer_ns = recorder.layer_ns();
  for (size_t i = 0; i < layer_ns.size(); ++i) {
    const size_t layer = i / kNumZones;
    const size_t kind = static_cast<size_t>(details.kind);
    tables_.layer_ns[(layer * kNumStepKinds + kind) * kNumZones + i % kNumZones] += layer_ns[i];
  }
  for (size_t i = 0; i < is_resident.size(); ++i) tables_.resident[i] += is_resident[i];
  tables_.nodes.insert(tables_.nodes.end(), details.nodes.begin(), details.nodes.end());
  add_rows(recorder, details);
}

void Profiler::add_rows(const StepRecorder& recorder, const StepDetails& details) {
  Tables& t = tables_;
  const size_t n_rows = recorder.tokens().size();
  const size_t row_size = static_cast<size_t>(shape_.n_moe_layers * shape_.n_used);
  t.row_tokens.insert(t.row_tokens.end(), recorder.tokens().begin(), recorder.tokens().end());
  t.row_experts.insert(t.row_experts.end(), recorder.routed().begin(), recorder.routed().end());
  t.row_nodes.resize(t.row_nodes.size() + n_rows, -1);
  ET_CHECK(details.verified_nodes.size() <= n_rows);
  std::ranges::copy(details.verified_nodes, t.row_nodes.end() - std::ssize(details.verified_nodes));
  t.row_predicted.resize(t.row_predicted.size() + n_rows * row_size, int16_t{-1});
  ET_CHECK(details.predicted.size() <= n_rows * row_size);
  std::ranges::copy(details.predicted, t.row_predicted.end() - std::ssize(details.predicted));
}

void Profiler::add_events(const StepRecorder& recorder, int32_t thread) {
  const auto step = static_cast<int32_t>(tables_.steps.size());
  if (std::ssize(tables_.events) + std::ssize(recorder.events()) > max_events_) {
    tables_.n_events_dropped += std::ssize(recorder.events());
    return;
  }
  for (const ZoneEvent& event : recorder.events()) tables_.events.push_back({event, step, thread});
}

void Profiler::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  end_ns_ = now_ns();
}

}  // namespace expertree
