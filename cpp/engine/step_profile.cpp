#include "cpp/engine/step_profile.h"

#include <algorithm>
#include <vector>

#include "cpp/base/process_memory.h"

namespace expertree {
namespace {

std::vector<uint8_t> resident_experts(const ExpertPager& pager, const ProfileShape& shape) {
  std::vector<uint8_t> is_resident;
  is_resident.reserve(static_cast<size_t>(shape.n_moe_layers * shape.n_experts));
  for (int32_t layer = 0; layer < shape.n_moe_layers; ++layer) {
    for (int32_t e = 0; e < shape.n_experts; ++e) {
      is_resident.push_back(pager.state(layer, e) == ExpertState::kResident ? 1 : 0);
    }
  }
  return is_resident;
}

}  // namespace

StepProfile::StepProfile(Model& model, int64_t session, int64_t n_tokens, StepRecorder** recorder)
    : model_(model), recorder_(recorder), profiler_(model.profiler()) {
  *recorder_ = nullptr;
  if (profiler_ == nullptr) return;
  details_.session = session;
  details_.counters.position = n_tokens;
  if (model_.experts() != nullptr) before_ = model_.experts()->stats();
  *recorder_ = &own_.emplace(profiler_->shape());
}

void StepProfile::finish(StepKind kind, std::span<const int32_t> gained, const SequenceState& state,
                         const StepRecord* record) {
  if (profiler_ == nullptr) return;
  own_->end();
  details_.kind = kind;
  count(gained, state, record);
  if (record != nullptr) add_tree(*record);
  std::vector<uint8_t> is_resident;
  if (model_.experts() != nullptr) is_resident = resident_experts(*model_.experts(), profiler_->shape());
  profiler_->add(*own_, details_, is_resident);
}

void StepProfile::count(std::span<const int32_t> gained, const SequenceState& state, const StepRecord* record) {
  StepCounters& c = details_.counters;
  c.n_tokens = std::ssize(gained);
  if (!gained.empty()) c.last_token = gained.back();
  c.n_rows = std::ssize(own_->tokens());
  if (record != nullptr) {
    c.predicted_seconds = record->predicted_seconds;
    c.measured_seconds = record->verify_seconds;
  }
  c.weights_bytes = model_.weight_bytes();
  c.kv_bytes = SequenceState::bytes_needed(model_.hyperparameters(), state.n_committed());
  c.process_bytes = process_resident_bytes();
  if (model_.experts() == nullptr) return;
  const PagerStats after = model_.experts()->stats();
  c.n_hits = after.n_hits - before_.n_hits;
  c.n_late = after.n_late - before_.n_late;
  c.n_misses = after.n_misses - before_.n_misses;
  c.n_hint_reads = after.n_hint_reads - before_.n_hint_reads;
  c.n_hints_in_time = after.n_hints_in_time - before_.n_hints_in_time;
  c.n_hints_late = after.n_hints_late - before_.n_hints_late;
  c.n_hints_wasted = after.n_hints_wasted - before_.n_hints_wasted;
  c.bytes_experts = after.bytes_read - before_.bytes_read;
  c.bytes_disk = after.bytes_from_disk - before_.bytes_from_disk;
  c.bytes_overread = after.bytes_overread - before_.bytes_overread;
  if (after.n_slots > 0) {
    c.expert_bytes =
        after.budget_bytes / static_cast<uint64_t>(after.n_slots) * static_cast<uint64_t>(after.n_resident);
  }
}

void StepProfile::add_tree(const StepRecord& record) {
  const TokenTree& tree = record.tree;
  for (size_t i = 0; i < tree.tokens.size(); ++i) {
    details_.nodes.push_back({tree.tokens[i], tree.parents[i], tree.depths[i], tree.scores[i], false, false});
  }
  for (const int32_t node : record.selected) details_.nodes[static_cast<size_t>(node)].verified = true;
  for (const int32_t node : record.accepted) details_.nodes[static_cast<size_t>(node)].accepted = true;
  details_.verified_nodes = record.selected;
  const ExpertSets& sets = record.predicted;
  if (sets.empty()) return;
  const auto add_row = [&](int64_t row) {
    for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
      for (const int32_t e : sets.of(row, layer)) details_.predicted.push_back(static_cast<int16_t>(e));
    }
  };
  add_row(0);
  for (const int32_t node : record.selected) add_row(node + 1);
}

}  // namespace expertree
