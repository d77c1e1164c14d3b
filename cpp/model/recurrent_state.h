// What recurrent layers leave behind of a sequence, under the verbs of SequenceState.
//
// The state of a layer is a matrix per head and the last inputs of its convolution. Rows of a tree do not each get a
// state: a row leaves only the terms that moved it (its convolution input, a decay and a step per head), and the state
// is moved by the committed ones, in order, when it is next needed. The bits are those of a sequence that was run token
// by token, because every column of a state does exactly what it would have done then (canonical.h, C11).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/base/memory.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/tree_scan.h"

namespace expertree {

// What commit() will be asked for after a batch.
enum class Keep : uint8_t {
  kAnyPath,  // the rows leave their terms
  kAll,  // all rows of a chain, or none: nothing is left but the state after the last
};

class RecurrentState {
 public:
  static constexpr int kStates = 4;  // that are kept: two in use, two checkpoints
  static constexpr int64_t kUsualTerms = 64;  // rows whose terms have room; more are made when a tree needs them

  explicit RecurrentState(const HyperParameters& h);
  static uint64_t bytes_needed(const HyperParameters& h);

  // As in SequenceState. begin() throws kOutOfMemory when the terms do not fit, and has then changed nothing.
  void begin(std::span<const int32_t> parents, Keep keep);
  void commit(std::span<const int32_t> path);
  void rollback();
  // Goes back to the longest length, at most `length`, that it still has the state of, and returns it: any length since
  // the terms were last applied, a checkpoint, or 0.
  int64_t truncate(int64_t length);
  void copy_to(RecurrentState* other) const;

  // For the layers. `layer` counts all layers of the model.
  // The pending rows are a chain that may be carried from chunk to chunk in the tip; else they are run as scan() says.
  bool is_chain() const { return is_chain_; }
  bool leaves_terms() const { return keep_ == Keep::kAnyPath; }
  const TreeScan& scan() const { return scan_; }
  std::span<const int32_t> parents() const { return parents_; }  // of pending rows

  // The committed state: matrices [n_value_heads][head_dim (key)][head_dim (value)] and the last n_taps - 1 inputs of the
  // convolution, oldest first, as of the last apply; then committed terms 0 .. n_log-1, of which the matrices have seen
  // n_applied.
  float* matrices(int64_t layer) { return matrices(current_, layer); }
  int64_t n_log() const { return n_log_; }
  int64_t n_applied(int64_t layer) const { return applied_[index(layer)]; }
  void set_applied(int64_t layer, int64_t n) { applied_[index(layer)] = n; }
  // The committed convolution input `back` places before the end (0: the last one).
  const float* committed_input(int64_t layer, int64_t back) const;
  // Terms of committed entry or pending row: float [n_channels] inputs, then [n_value_heads] decays and steps.
  float* log_terms(int64_t layer, int64_t i) { return terms(layer, i); }
  float* pending_terms(int64_t layer, int64_t row) { return terms(layer, n_log_ + row); }

  // The state after the rows of a chain that have been run: matrices and convolution inputs as above.
  float* tip_matrices(int64_t layer) { return matrices(tip_, layer); }
  float* tip_inputs(int64_t layer) { return inputs(tip_, layer); }
  // After this row of a chain the state is to be copied to the checkpoint; -1: none.
  int64_t checkpoint_row() const { return checkpoint_row_; }
  float* checkpoint_matrices(int64_t layer) { return matrices(kPromptCheckpoint, layer); }
  float* checkpoint_inputs(int64_t layer) { return inputs(kPromptCheckpoint, layer); }

 private:
  // Two places for the state in use, one for the state near the end of the last prompt, one taken now and then.
  static constexpr int kPromptCheckpoint = 2;
  static constexpr int kRegularCheckpoint = 3;

  size_t index(int64_t layer) const { return static_cast<size_t>(index_[static_cast<size_t>(layer)]); }
  float* state(int place, int64_t layer) const;
  float* matrices(int place, int64_t layer) const { return state(place, layer); }
  float* inputs(int place, int64_t layer) const { return state(place, layer) + r_.state_floats(); }
  float* terms(int64_t layer, int64_t i) const;
  void copy_state(int from, int to);
  void settle();
  void reserve_terms(int64_t n);
  void plan_checkpoints(int64_t n_rows);

  RecurrentParameters r_;
  int64_t n_layers_ = 0;  // recurrent ones
  std::vector<int64_t> index_;  // by layer of the model; -1: not recurrent
  PageBuffer states_[kStates];
  int64_t position_[kStates] = {0, 0, -1,
                                -1};  // of checkpoints: length of the sequence; -1: empty. Of the state: base.
  int current_ = 0;
  int tip_ = 1;
  PageBuffer terms_;  // [n_layers][capacity_][term_floats]
  int64_t capacity_ = 0;
  int64_t n_log_ = 0;
  std::vector<int64_t> applied_;  // by recurrent layer

  std::vector<int32_t> parents_;  // of pending rows
  Keep keep_ = Keep::kAnyPath;
  bool is_chain_ = true;
  int64_t checkpoint_row_ = -1;
  TreeScan scan_;
};

// Rows [begin, begin + n) of a sequence's pending batch, which are rows [at, at + n) of what a layer is given.
struct RecurrentRows {
  RecurrentState* state;
  int64_t begin;
  int64_t n;
  int64_t at;
};

}  // namespace expertree
