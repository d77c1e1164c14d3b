// A call of one session, or of several together, for the profile that runs, if one does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpp/engine/speculation.h"
#include "cpp/model/model.h"
#include "cpp/model/sequence_state.h"
#include "cpp/profile/profiler.h"

namespace expertree {

class CallProfile {
 public:
  // The call begins.
  explicit CallProfile(Model& model);
  ~CallProfile();
  CallProfile(const CallProfile&) = delete;
  CallProfile& operator=(const CallProfile&) = delete;

  // A session takes part, which has n_tokens: `recorders` points at the call's until this ends. Its number in finish().
  size_t attach(CallRecorders* recorders, int64_t session, int64_t n_tokens);
  // The session's part is over; before the session may begin another call.
  void detach(size_t part) noexcept;
  // The session's part succeeded; one that did not is not recorded. record: of a step; nullptr for other calls.
  void finish(size_t part, StepKind kind, std::span<const int32_t> gained, const SequenceState& state,
              const StepRecord* record);
  // The call ends.
  void close();

 private:
  struct Part {
    Part(const ProfileShape& shape, CallRecorders* at) : call(shape), recorders(at) {}
    CallPart call;
    CallRecorders* recorders;
    bool finished = false;
  };

  void count(const StepRecord* record, const SequenceState& state, StepCounters* c) const;
  static void add_tree(const StepRecord& record, CallPart* part);
  PagerCounts pager_counts() const;

  Model& model_;
  std::shared_ptr<Profiler> profiler_;  // nullptr: no profile
  std::optional<Timeline> timeline_;
  PagerStats before_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace expertree
