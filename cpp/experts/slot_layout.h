// How one expert lies in a slot of memory: all its projections, each where a direct read can put it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpp/experts/expert_index.h"
#include "cpp/io/gguf_reader.h"

namespace expertree {

// One contiguous read of an expert's bytes.
struct ExpertPiece {
  int32_t file;      // of the reader's files
  uint64_t offset;   // bytes from the start of the file
  uint64_t size;
  uint64_t at;       // bytes from the start of the slot; equal to `offset` modulo the file's read alignment
};

// Slots of layers whose experts take equally many bytes are interchangeable; they form a size class.
class SlotLayout {
 public:
  // alignment(file): what direct reads of that file ask for, a power of two, 1 without direct reads.
  SlotLayout(const ExpertIndex& index, const GgufReader& reader, const std::function<uint64_t(int32_t)>& alignment);

  int32_t n_layers() const { return static_cast<int32_t>(layers_.size()); }
  int32_t n_experts() const { return n_experts_; }  // of the layer that has most
  int32_t n_experts_of(int32_t layer) const { return layers_[static_cast<size_t>(layer)].n_experts; }
  int32_t n_classes() const { return static_cast<int32_t>(slot_bytes_.size()); }
  int32_t class_of(int32_t layer) const { return layers_[static_cast<size_t>(layer)].size_class; }
  const std::vector<uint64_t>& slot_bytes() const { return slot_bytes_; }  // [n_classes], multiples of 64
  std::vector<int64_t> experts_of_classes() const;                        // [n_classes]: how many there are

  const ExpertPiece& piece(int32_t layer, int32_t expert, int32_t projection) const {
    return layers_[static_cast<size_t>(layer)].pieces[static_cast<size_t>(expert * kNumProjections + projection)];
  }
  uint64_t file_bytes(int32_t layer) const { return layers_[static_cast<size_t>(layer)].file_bytes; }  // of an expert

 private:
  struct Layer {
    int32_t n_experts;
    int32_t size_class;
    uint64_t file_bytes;
    std::vector<ExpertPiece> pieces;  // [n_experts][kNumProjections]
  };
  std::vector<Layer> layers_;
  std::vector<uint64_t> slot_bytes_;
  int32_t n_experts_ = 0;
};

// How many slots each class gets.
struct SlotPlan {
  std::vector<int64_t> n_slots;  // [n_classes], each from 1 to the number of experts of the class
  uint64_t bytes;  // of all slots, at most the budget
  uint64_t all_bytes;  // what a slot for every expert would take
  uint64_t least_bytes;  // one slot for each class: experts one at a time
  bool holds_all() const { return bytes == all_bytes; }
};

constexpr uint64_t kAllExperts = ~uint64_t{0};  // a budget: as much as they take

// Classes get shares in proportion to the bytes of their experts. Throws kOutOfMemory naming the least budget that works.
SlotPlan plan_slots(const std::vector<uint64_t>& slot_bytes, const std::vector<int64_t>& n_experts, uint64_t budget);

}  // namespace expertree
