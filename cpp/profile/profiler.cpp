#include "cpp/profile/profiler.h"

#include <algorithm>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

namespace expertree {
namespace {

// What a session answers for in a call.
int64_t weight_of(const CallPart& part) { return std::max<int64_t>(1, std::ssize(part.rows.tokens())); }

// The part [begin, end) of `all`; the parts of a number add up to it.
struct Share {
  int64_t begin;
  int64_t end;
  int64_t all;

  int64_t of(int64_t n) const { return n * end / all - n * begin / all; }
  uint64_t of(uint64_t n) const { return static_cast<uint64_t>(of(static_cast<int64_t>(n))); }
  PagerCounts of(const PagerCounts& c) const {
    return {of(c.n_hits),       of(c.n_late),         of(c.n_misses),      of(c.n_hint_reads), of(c.n_hints_in_time),
            of(c.n_hints_late), of(c.n_hints_wasted), of(c.bytes_experts), of(c.bytes_disk),   of(c.bytes_overread)};
  }
};

}  // namespace

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

void Profiler::add(const Timeline& timeline, std::span<const CallPart* const> parts, const PagerCounts& pager,
                   std::span<const uint8_t> is_resident) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || parts.empty()) return;
  const int32_t thread = thread_index();
  add_events(timeline, thread);
  int64_t& last_end = thread_end_ns_[static_cast<size_t>(thread)];
  int64_t n_all = 0;
  for (const CallPart* part : parts) n_all += weight_of(*part);
  int64_t n_before = 0;
  for (const CallPart* part : parts) {
    const int64_t n = weight_of(*part);
    const Share share{n_before, n_before + n, n_all};
    n_before += n;
    const int64_t wall = timeline.end_ns() - timeline.begin_ns();
    const int64_t begin = timeline.begin_ns() + wall * share.begin / n_all;
    tables_.steps.push_back({.kind = part->kind,
                             .session = part->session,
                             .thread = thread,
                             .begin_ns = begin,
                             .end_ns = begin + share.of(wall),
                             .outside_ns = std::max<int64_t>(0, begin - last_end),
                             .n_passes = part->rows.n_passes(),
                             .zone_ns = {},
                             .pager = share.of(pager),
                             .counters = part->counters,
                             .n_nodes = std::ssize(part->nodes),
                             .n_rows = std::ssize(part->rows.tokens())});
    Step& step = tables_.steps.back();
    for (size_t z = 0; z < kNumZones; ++z) step.zone_ns[z] = share.of(timeline.zone_ns()[z]);
    last_end = step.end_ns;
    for (size_t i = 0; i < timeline.layer_ns().size(); ++i) {
      const size_t row = i / kNumZones * kNumStepKinds + static_cast<size_t>(part->kind);
      tables_.layer_ns[row * kNumZones + i % kNumZones] += share.of(timeline.layer_ns()[i]);
    }
    for (size_t i = 0; i < is_resident.size(); ++i) tables_.resident[i] += is_resident[i];
    tables_.nodes.insert(tables_.nodes.end(), part->nodes.begin(), part->nodes.end());
    add_rows(*part);
  }
}

void Profiler::add_rows(const CallPart& part) {
  Tables& t = tables_;
  const size_t n_rows = part.rows.tokens().size();
  const size_t row_size = static_cast<size_t>(shape_.n_moe_layers * shape_.n_used);
  t.row_tokens.insert(t.row_tokens.end(), part.rows.tokens().begin(), part.rows.tokens().end());
  t.row_experts.insert(t.row_experts.end(), part.rows.routed().begin(), part.rows.routed().end());
  t.row_nodes.resize(t.row_nodes.size() + n_rows, -1);
  ET_CHECK(part.verified_nodes.size() <= n_rows);
  std::ranges::copy(part.verified_nodes, t.row_nodes.end() - std::ssize(part.verified_nodes));
  t.row_predicted.resize(t.row_predicted.size() + n_rows * row_size, int16_t{-1});
  ET_CHECK(part.predicted.size() <= n_rows * row_size);
  std::ranges::copy(part.predicted, t.row_predicted.end() - std::ssize(part.predicted));
}

// They belong to the first of the steps that the call becomes.
void Profiler::add_events(const Timeline& timeline, int32_t thread) {
  const auto step = static_cast<int32_t>(tables_.steps.size());
  if (std::ssize(tables_.events) + std::ssize(timeline.events()) > max_events_) {
    tables_.n_events_dropped += std::ssize(timeline.events());
    return;
  }
  for (const ZoneEvent& event : timeline.events()) tables_.events.push_back({event, step, thread});
}

void Profiler::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  end_ns_ = now_ns();
}

}  // namespace expertree
