// What sessions did while a profile ran: each call's record is put behind those before it when the call has ended. A call
// that several sessions share becomes a step of each, with its share of the time and of what the pager did.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cpp/profile/row_recorder.h"
#include "cpp/profile/timeline.h"

namespace expertree {

// What the pager did during a call, whichever session it was for.
struct PagerCounts {
  int64_t n_hits = 0;
  int64_t n_late = 0;
  int64_t n_misses = 0;
  int64_t n_hint_reads = 0;
  int64_t n_hints_in_time = 0;
  int64_t n_hints_late = 0;
  int64_t n_hints_wasted = 0;
  uint64_t bytes_experts = 0;
  uint64_t bytes_disk = 0;
  uint64_t bytes_overread = 0;
};

// What a step did besides.
struct StepCounters {
  int64_t position = 0;  // tokens in the session before
  int64_t n_tokens = 0;  // gained
  int32_t last_token = -1;  // of them; -1: none
  double predicted_seconds = 0.0;  // of the pass with all its sessions, as the next one
  double measured_seconds = 0.0;
  uint64_t weights_bytes = 0;  // of memory, at the end
  uint64_t expert_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t process_bytes = 0;
};

struct ProfiledNode {
  int32_t token;
  int32_t parent;
  int32_t depth;
  float score;
  bool verified;
  bool accepted;
};

// One session's part of a call.
struct CallPart {
  explicit CallPart(const ProfileShape& shape) : rows(shape) {}

  RowRecorder rows;
  StepKind kind = StepKind::kDecode;
  int64_t session = 0;
  StepCounters counters;
  std::vector<ProfiledNode> nodes;
  std::vector<int32_t> verified_nodes;  // of the last rows but for the first of them, the tree's root
  std::vector<int16_t> predicted;  // [1 + verified_nodes][moe layers][n_used], or empty
};

class Profiler {
 public:
  struct Step {
    StepKind kind;
    int64_t session;
    int32_t thread;
    int64_t begin_ns;
    int64_t end_ns;
    int64_t outside_ns;  // since the thread's last step, or the profile's beginning
    int64_t n_passes;
    std::array<int64_t, kNumZones> zone_ns;
    PagerCounts pager;
    StepCounters counters;
    int64_t n_nodes;
    int64_t n_rows;
  };
  struct Event {
    ZoneEvent event;
    int32_t step;
    int32_t thread;
  };
  // All columns, steps in the order in which they ended.
  struct Tables {
    std::vector<Step> steps;
    std::vector<int64_t> layer_ns;  // [n_layers][kNumStepKinds][kNumZones]
    std::vector<int64_t> resident;  // [n_moe_layers * n_experts]: steps at whose end the expert was in memory
    std::vector<ProfiledNode> nodes;
    std::vector<int32_t> row_tokens;
    std::vector<int32_t> row_nodes;  // -1: no node's
    std::vector<int16_t> row_experts;  // [rows][n_moe_layers][n_used]
    std::vector<int16_t> row_predicted;  // the same shape; -1: nothing
    std::vector<Event> events;
    int64_t n_events_dropped = 0;
  };

  Profiler(const ProfileShape& shape, int64_t max_events);

  const ProfileShape& shape() const { return shape_; }
  int64_t begin_ns() const { return begin_ns_; }
  // A call that has ended. is_resident: [n_moe_layers * n_experts]. Nothing happens once the profile is closed.
  void add(const Timeline& timeline, std::span<const CallPart* const> parts, const PagerCounts& pager,
           std::span<const uint8_t> is_resident);
  // The profile ends; calls that are under way are not in it.
  void close();
  // Of a closed profile.
  const Tables& tables() const { return tables_; }
  int64_t end_ns() const { return end_ns_; }

 private:
  int32_t thread_index();
  void add_rows(const CallPart& part);
  void add_events(const Timeline& timeline, int32_t thread);

  const ProfileShape shape_;
  const int64_t max_events_;
  const int64_t begin_ns_;
  int64_t end_ns_ = 0;
  bool closed_ = false;
  std::mutex mutex_;
  std::map<std::thread::id, int32_t> threads_;
  std::vector<int64_t> thread_end_ns_;  // of each one's last step
  Tables tables_;
};

}  // namespace expertree
