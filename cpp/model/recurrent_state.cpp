#include "cpp/model/recurrent_state.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cpp/base/error.h"
#include "cpp/tensor/weight.h"

namespace expertree {
namespace {

// The end of a prompt is where the next turn of a conversation, or another attempt at this one, parts from it: its
// template may render the last few tokens otherwise. Shorter runs are run again from an earlier checkpoint.
constexpr int64_t kLeastPrompt = 64;
constexpr int64_t kBeforeEnd = 32;
constexpr int64_t kCheckpointInterval = 256;

int64_t count_layers(const HyperParameters& h) {
  return std::ranges::count_if(h.layers, [](const LayerParameters& l) { return l.mixer != Mixer::kAttention; });
}

int64_t input_floats(const RecurrentParameters& r) { return (r.n_taps - 1) * r.n_channels; }
int64_t term_floats(const RecurrentParameters& r) { return r.n_channels + 2 * r.n_value_heads; }

uint64_t state_bytes(const RecurrentParameters& r, int64_t n_layers) {
  return static_cast<uint64_t>(n_layers * (r.state_floats() + input_floats(r)) + kOverreadFloats) * sizeof(float);
}

uint64_t term_bytes(const RecurrentParameters& r, int64_t n_layers, int64_t n) {
  return static_cast<uint64_t>(n_layers * n * term_floats(r) + kOverreadFloats) * sizeof(float);
}

size_t float_bytes(int64_t n) { return static_cast<size_t>(n) * sizeof(float); }

}  // namespace

uint64_t RecurrentState::bytes_needed(const HyperParameters& h) {
  if (!h.is_recurrent()) return 0;
  const int64_t n_layers = count_layers(h);
  return kStates * state_bytes(h.recurrent, n_layers) + term_bytes(h.recurrent, n_layers, kUsualTerms);
}

RecurrentState::RecurrentState(const HyperParameters& h) : r_(h.recurrent) {
  if (!h.is_recurrent()) return;
  for (const LayerParameters& l : h.layers) index_.push_back(l.mixer == Mixer::kAttention ? -1 : n_layers_++);
  for (PageBuffer& state : states_) state = PageBuffer(state_bytes(r_, n_layers_), "the recurrent state");
  applied_.assign(static_cast<size_t>(n_layers_), 0);
  reserve_terms(kUsualTerms);
}

float* RecurrentState::state(int place, int64_t layer) const {
  return states_[place].as<float>() + static_cast<int64_t>(index(layer)) * (r_.state_floats() + input_floats(r_));
}

float* RecurrentState::terms(int64_t layer, int64_t i) const {
  return terms_.as<float>() + (static_cast<int64_t>(index(layer)) * capacity_ + i) * term_floats(r_);
}

const float* RecurrentState::committed_input(int64_t layer, int64_t back) const {
  if (back < n_log_) return terms(layer, n_log_ - 1 - back);
  return inputs(current_, layer) + (r_.n_taps - 2 - (back - n_log_)) * r_.n_channels;
}

void RecurrentState::copy_state(int from, int to) {
  std::memcpy(states_[to].data(), states_[from].data(), states_[from].size_bytes());
  position_[to] = position_[from];
}

// Room for n terms per layer; those of the log are kept.
void RecurrentState::reserve_terms(int64_t n) {
  if (n <= capacity_) return;
  const int64_t grown = std::max(n, 2 * capacity_);
  require_memory(term_bytes(r_, n_layers_, grown), "the recurrent terms of " + std::to_string(grown) + " rows");
  PageBuffer larger(term_bytes(r_, n_layers_, grown), "the recurrent terms");
  const int64_t width = term_floats(r_);
  for (int64_t i = 0; i < n_layers_; ++i) {
    std::memcpy(larger.as<float>() + i * grown * width, terms_.as<float>() + i * capacity_ * width,
                float_bytes(n_log_ * width));
  }
  terms_ = std::move(larger);
  capacity_ = grown;
}

// Drops the log when every layer's matrices have seen it.
void RecurrentState::settle() {
  if (n_log_ == 0 || std::ranges::any_of(applied_, [this](int64_t n) { return n < n_log_; })) return;
  std::vector<float> last(static_cast<size_t>(input_floats(r_)));
  for (size_t layer = 0; layer < index_.size(); ++layer) {
    if (index_[layer] < 0) continue;
    const auto l = static_cast<int64_t>(layer);
    for (int64_t t = 0; t < r_.n_taps - 1; ++t) {
      std::copy_n(committed_input(l, r_.n_taps - 2 - t), r_.n_channels, last.begin() + t * r_.n_channels);
    }
    std::ranges::copy(last, inputs(current_, l));
  }
  position_[current_] += n_log_;
  n_log_ = 0;
  std::ranges::fill(applied_, 0);
}

void RecurrentState::plan_checkpoints(int64_t n_rows) {
  checkpoint_row_ = -1;
  if (is_chain_ && n_rows >= kLeastPrompt) {
    checkpoint_row_ = n_rows - 1 - kBeforeEnd;
    position_[kPromptCheckpoint] = -1;  // until the rows are committed
  }
  const int64_t newest = std::max({int64_t{0}, position_[kPromptCheckpoint], position_[kRegularCheckpoint]});
  const bool at_base = std::ranges::all_of(applied_, [](int64_t n) { return n == 0; });
  if (at_base && position_[current_] >= newest + kCheckpointInterval) copy_state(current_, kRegularCheckpoint);
}

void RecurrentState::begin(std::span<const int32_t> parents, Keep keep) {
  if (n_layers_ == 0) return;
  const auto n = std::ssize(parents);
  bool chain = true;
  for (int64_t r = 0; r < n; ++r) chain = chain && parents[static_cast<size_t>(r)] == r - 1;
  ET_CHECK(chain || keep == Keep::kAnyPath);
  settle();
  if (keep == Keep::kAnyPath) reserve_terms(n_log_ + n);
  parents_.assign(parents.begin(), parents.end());
  keep_ = keep;
  is_chain_ = chain;
  scan_ = chain ? TreeScan{} : plan_tree_scan(parents);
  plan_checkpoints(n);
}

// The rows are a path, which SequenceState has checked.
void RecurrentState::commit(std::span<const int32_t> path) {
  if (n_layers_ == 0 || path.empty()) return;
  const bool all = path.size() == parents_.size();
  ET_CHECK(all || keep_ == Keep::kAnyPath);
  if (is_chain_ && all) {
    const int64_t before = position_[current_] + n_log_;
    if (checkpoint_row_ >= 0) position_[kPromptCheckpoint] = before + checkpoint_row_ + 1;
    std::swap(current_, tip_);
    position_[current_] = before + std::ssize(path);
    n_log_ = 0;
    std::ranges::fill(applied_, 0);
    return;
  }
  // A row's index is at least its depth, so terms only ever move down, in order.
  for (size_t layer = 0; layer < index_.size(); ++layer) {
    if (index_[layer] < 0) continue;
    const auto l = static_cast<int64_t>(layer);
    for (int64_t i = 0; i < std::ssize(path); ++i) {
      const int64_t row = path[static_cast<size_t>(i)];
      if (row != i) std::memcpy(terms(l, n_log_ + i), terms(l, n_log_ + row), float_bytes(term_floats(r_)));
    }
  }
  n_log_ += std::ssize(path);
}

void RecurrentState::rollback() {
  parents_.clear();
  checkpoint_row_ = -1;
}

int64_t RecurrentState::truncate(int64_t length) {
  if (n_layers_ == 0) return length;
  for (const int place : {kPromptCheckpoint, kRegularCheckpoint}) {
    if (position_[place] > length) position_[place] = -1;
  }
  const int64_t kept = length - position_[current_];
  if (kept >= 0 && kept <= n_log_ && std::ranges::all_of(applied_, [kept](int64_t n) { return n <= kept; })) {
    n_log_ = kept;
    return length;
  }
  n_log_ = 0;
  std::ranges::fill(applied_, 0);
  const int newest =
      position_[kPromptCheckpoint] > position_[kRegularCheckpoint] ? kPromptCheckpoint : kRegularCheckpoint;
  if (position_[newest] >= 0) {
    copy_state(newest, current_);
  } else {
    std::memset(states_[current_].data(), 0, states_[current_].size_bytes());
    position_[current_] = 0;
  }
  return position_[current_];
}

void RecurrentState::copy_to(RecurrentState* other) const {
  if (n_layers_ == 0) return;
  other->n_log_ = 0;
  other->reserve_terms(capacity_);
  for (int place = 0; place < kStates; ++place) {
    other->position_[place] = position_[place];
    if (place >= kPromptCheckpoint && position_[place] < 0) continue;
    if (place == tip_ && parents_.empty()) continue;
    std::memcpy(other->states_[place].data(), states_[place].data(), states_[place].size_bytes());
  }
  const int64_t n_terms = n_log_ + (keep_ == Keep::kAnyPath ? std::ssize(parents_) : 0);
  for (size_t layer = 0; layer < index_.size(); ++layer) {
    if (index_[layer] < 0) continue;
    const auto l = static_cast<int64_t>(layer);
    std::memcpy(other->terms(l, 0), terms(l, 0), float_bytes(n_terms * term_floats(r_)));
  }
  other->current_ = current_;
  other->tip_ = tip_;
  other->n_log_ = n_log_;
  other->applied_ = applied_;
  other->parents_ = parents_;
  other->keep_ = keep_;
  other->is_chain_ = is_chain_;
  other->checkpoint_row_ = checkpoint_row_;
  other->scan_ = scan_;
}

}  // namespace expertree
