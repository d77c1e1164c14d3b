// Rows of a chunk as attention on a device is told of them (cpp/backend/device_attention.h).
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/backend/device_attention.h"
#include "cpp/model/sequence_state.h"

namespace expertree {

class AttentionRows {
 public:
  void clear();
  // Rows [begin, begin + n) of a sequence's pending batch, which follow those added before. The state has cells there.
  // False: the tails are more than max_tails in all, and the rows are not to be used.
  bool add(const SequenceState& state, int64_t begin, int64_t n, int64_t max_tails);
  // All but angles, scales and what is seen first; good until rows are added.
  DeviceAttentionRows rows() const;

 private:
  std::vector<int32_t> cells_;
  std::vector<int32_t> base_;
  std::vector<int32_t> n_prefix_;
  std::vector<int32_t> tail_;
  std::vector<int32_t> n_tail_;
  std::vector<int32_t> tails_;
};

}  // namespace expertree
