#include "cpp/engine/call_profile.h"

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

CallProfile::CallProfile(Model& model) : model_(model), profiler_(model.profiler()) {
  if (profiler_ == nullptr) return;
  if (model_.experts() != nullptr) before_ = model_.experts()->stats();
  timeline_.emplace(profiler_->shape());
}

CallProfile::~CallProfile() {
  for (size_t i = 0; i < parts_.size(); ++i) detach(i);
}

void CallProfile::detach(size_t part) noexcept {
  if (profiler_ == nullptr || parts_[part]->recorders == nullptr) return;
  *parts_[part]->recorders = {};
  parts_[part]->recorders = nullptr;
}

size_t CallProfile::attach(CallRecorders* recorders, int64_t session, int64_t n_tokens) {
  if (profiler_ == nullptr) return 0;
  parts_.push_back(std::make_unique<Part>(profiler_->shape(), recorders));
  CallPart& call = parts_.back()->call;
  call.session = session;
  call.counters.position = n_tokens;
  *recorders = {&*timeline_, &call.rows};
  return parts_.size() - 1;
}

void CallProfile::finish(size_t part, StepKind kind, std::span<const int32_t> gained, const SequenceState& state,
                         const StepRecord* record) {
  if (profiler_ == nullptr) return;
  CallPart& call = parts_[part]->call;
  call.kind = kind;
  call.counters.n_tokens = std::ssize(gained);
  if (!gained.empty()) call.counters.last_token = gained.back();
  count(record, state, &call.counters);
  if (record != nullptr) add_tree(*record, &call);
  parts_[part]->finished = true;
}

void CallProfile::close() {
  if (profiler_ == nullptr) return;
  timeline_->end();
  std::vector<const CallPart*> finished;
  for (const auto& part : parts_) {
    if (part->finished) finished.push_back(&part->call);
  }
  std::vector<uint8_t> is_resident;
  if (model_.experts() != nullptr) is_resident = resident_experts(*model_.experts(), profiler_->shape());
  profiler_->add(*timeline_, finished, pager_counts(), is_resident);
}

void CallProfile::count(const StepRecord* record, const SequenceState& state, StepCounters* c) const {
  if (record != nullptr) {
    c->predicted_seconds = record->predicted_seconds;
    c->measured_seconds = record->verify_seconds;
  }
  c->weights_bytes = model_.weight_bytes();
  c->kv_bytes = model_.state_bytes(state.n_committed());
  c->process_bytes = process_resident_bytes();
  if (model_.experts() == nullptr) return;
  const PagerStats stats = model_.experts()->stats();
  if (stats.n_slots == 0) return;
  const uint64_t mean_bytes = stats.budget_bytes / static_cast<uint64_t>(stats.n_slots);
  c->expert_bytes = mean_bytes * static_cast<uint64_t>(stats.n_resident);
}

PagerCounts CallProfile::pager_counts() const {
  PagerCounts c;
  if (model_.experts() == nullptr) return c;
  const PagerStats after = model_.experts()->stats();
  c.n_hits = after.n_hits + after.n_device_hits - before_.n_hits - before_.n_device_hits;
  c.n_late = after.n_late - before_.n_late;
  c.n_misses = after.n_misses - before_.n_misses;
  c.n_hint_reads = after.n_hint_reads - before_.n_hint_reads;
  c.n_hints_in_time = after.n_hints_in_time - before_.n_hints_in_time;
  c.n_hints_late = after.n_hints_late - before_.n_hints_late;
  c.n_hints_wasted = after.n_hints_wasted - before_.n_hints_wasted;
  c.bytes_experts = after.bytes_read - before_.bytes_read;
  c.bytes_disk = after.bytes_from_disk - before_.bytes_from_disk;
  c.bytes_overread = after.bytes_overread - before_.bytes_overread;
  return c;
}

void CallProfile::add_tree(const StepRecord& record, CallPart* part) {
  const TokenTree& tree = record.tree;
  for (size_t i = 0; i < tree.tokens.size(); ++i) {
    part->nodes.push_back({tree.tokens[i], tree.parents[i], tree.depths[i], tree.scores[i], false, false});
  }
  for (const int32_t node : record.selected) part->nodes[static_cast<size_t>(node)].verified = true;
  for (const int32_t node : record.accepted) part->nodes[static_cast<size_t>(node)].accepted = true;
  part->verified_nodes = record.selected;
  const ExpertSets& sets = record.predicted;
  if (sets.empty()) return;
  const auto add_row = [&](int64_t row) {
    for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
      for (const int32_t e : sets.of(row, layer)) part->predicted.push_back(static_cast<int16_t>(e));
    }
  };
  add_row(0);
  for (const int32_t node : record.selected) add_row(node + 1);
}

}  // namespace expertree
