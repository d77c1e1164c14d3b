// One call of a session for the profile that runs, if one does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "cpp/engine/speculation.h"
#include "cpp/model/model.h"
#include "cpp/model/sequence_state.h"
#include "cpp/profile/profiler.h"

namespace expertree {

class StepProfile {
 public:
  // Points `recorder` at the call's recorder, until the call ends; at nullptr without a profile.
  StepProfile(Model& model, int64_t session, int64_t n_tokens, StepRecorder** recorder);
  // A call that was not finished is not recorded.
  ~StepProfile() { *recorder_ = nullptr; }
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // The call succeeded. record: of a step; nullptr for others.
  void finish(StepKind kind, std::span<const int32_t> gained, const SequenceState& state, const StepRecord* record);

 private:
  void count(std::span<const int32_t> gained, const SequenceState& state, const StepRecord* record);
  void add_tree(const StepRecord& record);

  Model& model_;
  StepRecorder** recorder_;
  std::shared_ptr<Profiler> profiler_;
  std::optional<StepRecorder> own_;
  PagerStats before_;
  StepDetails details_;
};

}  // namespace expertree
