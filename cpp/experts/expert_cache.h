// Which expert lies in which slot, and which one goes when another needs the slot. Bookkeeping alone: no memory, no
// reading, no locks. The pager and the simulation run this same code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/experts/cache_policy.h"

namespace expertree {

enum class SlotState : uint8_t {
  kFree,
  kFilling,  // being read; never reused before that ends
  kReady,
  kFailed,   // its read failed and somebody still waits for it
};

enum class FillReason : uint8_t {
  kDemand,      // a step needs it
  kHint,        // somebody expects that a step will
  kBackground,  // there is room
  kOffer,       // it was used and ran elsewhere: there is room, or the policy likes it better than another one
};

struct HintCounts {
  int64_t n_in_time = 0;  // there when first needed
  int64_t n_late = 0;     // still being read then
  int64_t n_wasted = 0;   // given up unused
};

class ExpertCache {
 public:
  struct Shape {
    int32_t n_layers;
    int32_t n_experts;
    std::vector<int32_t> class_of_layer;  // [n_layers]
    std::vector<int64_t> n_slots;         // of each class
  };

  // All policies see all that is counted; the active one (the first, until set_active) chooses victims.
  ExpertCache(Shape shape, std::vector<std::unique_ptr<CachePolicy>> policies);
  ExpertCache(ExpertCache&&) = default;
  ExpertCache& operator=(ExpertCache&&) = delete;

  void set_active(size_t policy) { active_ = policy; }
  size_t active() const { return active_; }

  int32_t n_slots() const { return static_cast<int32_t>(slots_.size()); }
  ExpertKey key(int32_t layer, int32_t expert) const { return layer * shape_.n_experts + expert; }
  int32_t layer_of(ExpertKey key) const { return key / shape_.n_experts; }
  int32_t class_of(ExpertKey key) const { return shape_.class_of_layer[static_cast<size_t>(layer_of(key))]; }

  // The expert's slot, or -1.
  int32_t find(ExpertKey key) const { return slot_of_[static_cast<size_t>(key)]; }
  SlotState state(int32_t slot) const { return slots_[static_cast<size_t>(slot)].state; }
  ExpertKey key_in(int32_t slot) const { return slots_[static_cast<size_t>(slot)].key; }  // -1: free
  int32_t pins(int32_t slot) const { return slots_[static_cast<size_t>(slot)].n_pins; }
  bool has_free(int32_t size_class) const { return !free_[static_cast<size_t>(size_class)].empty(); }

  void begin_step() { ++step_; }
  // This step needs the expert: told once per step and expert, in layer order.
  void use(ExpertKey key);
  // n rows of the text use these experts of the layer, row by row: what the policies learn from. A layer that is not
  // after the last one begins with new rows.
  void count(int32_t layer, std::span<const int32_t> experts, int64_t n_rows);

  struct Taken {
    int32_t slot = -1;         // now filling with the key; -1: there is none to be had at present
    ExpertKey evicted = -1;    // what was in it
  };
  // A slot for an expert that has none. Slots that are pinned or filling are never taken. A hint evicts nothing that this
  // step or the one before it used, and no unused hint of theirs; nor does an offer; a background fill evicts nothing.
  // `may_go`, where given, is asked about each expert that could be given up.
  Taken take(ExpertKey key, FillReason reason, const std::function<bool(ExpertKey)>& may_go = {});
  void filled(int32_t slot);
  void failed(int32_t slot);

  // A faster tier holds the expert, too: its slot goes first.
  void set_covered(ExpertKey key, bool covered);
  bool is_covered(ExpertKey key) const { return covered_[static_cast<size_t>(key)]; }

  // All slots are free; nothing is pinned.
  void clear();

  void pin(int32_t slot) { ++slots_[static_cast<size_t>(slot)].n_pins; }
  void unpin(int32_t slot);

  const HintCounts& hints() const { return hints_; }
  int64_t n_evictions() const { return n_evictions_; }

 private:
  struct Slot {
    ExpertKey key = -1;
    SlotState state = SlotState::kFree;
    FillReason reason = FillReason::kDemand;
    bool used = false;       // since it was filled
    int32_t size_class = 0;
    int32_t n_pins = 0;
    int64_t last_step = -2;  // that used it, or that it was hinted in
  };

  int32_t choose_victim(ExpertKey key, FillReason reason, const std::function<bool(ExpertKey)>& may_go);
  bool collect_for(ExpertKey key, FillReason reason);
  bool collect_covered(int32_t size_class);
  bool collect(int32_t size_class, int64_t before_step, bool spare_hints);
  void evict(Slot* slot);
  void free_slot(int32_t slot);

  Shape shape_;
  std::vector<std::unique_ptr<CachePolicy>> policies_;
  size_t active_ = 0;
  std::vector<Slot> slots_;                  // by class
  std::vector<int32_t> class_begin_;         // [n_classes + 1], into slots_
  std::vector<std::vector<int32_t>> free_;   // [n_classes], the next one last
  std::vector<int32_t> slot_of_;             // [n_layers * n_experts]
  std::vector<bool> covered_;                // [n_layers * n_experts]
  int64_t n_covered_ = 0;                    // of them
  std::vector<ExpertKey> candidates_;        // scratch of choose_victim
  std::vector<int64_t> n_rows_of_;           // [n_experts], scratch of count
  int32_t counted_layer_ = -1;               // the last one
  int64_t step_ = 0;
  HintCounts hints_;
  int64_t n_evictions_ = 0;
};

}  // namespace expertree
