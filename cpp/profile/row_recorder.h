// The rows that a call runs for one session, and what they route to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/profile/profile_shape.h"

namespace expertree {

class Timeline;

class RowRecorder {
 public:
  explicit RowRecorder(const ProfileShape& shape) : shape_(shape) {}

  // Rows that a pass begins to run; route() speaks of the last n_rows of them. ids: [n_rows][n_used].
  void add(std::span<const int32_t> tokens);
  void route(int64_t moe_layer, const int32_t* ids, int64_t n_rows);
  // A pass that fails is not to be seen: drop() forgets what was added since mark().
  void mark() { mark_ = tokens_.size(); }
  void drop();

  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int16_t>& routed() const { return routed_; }  // [rows][moe layers][n_used]; -1: not run
  int64_t n_passes() const { return n_passes_; }

 private:
  size_t row_size() const { return static_cast<size_t>(shape_.n_moe_layers * shape_.n_used); }

  ProfileShape shape_;
  std::vector<int32_t> tokens_;
  std::vector<int16_t> routed_;
  size_t mark_ = 0;
  int64_t n_passes_ = 0;
};

// Where a call is recorded; both are nullptr while no profile runs.
struct CallRecorders {
  Timeline* timeline = nullptr;  // of the thread: sessions that share a call share it
  RowRecorder* rows = nullptr;   // of one session
};

}  // namespace expertree
