// The machine that a replay supposes, and what its steps cost there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/experts/expert_cache.h"
#include "cpp/spec/measured_cost.h"

namespace expertree {

// Experts run in a tier of bounded size (memory of a GPU, or RAM). Those that are not there come from the tier behind it,
// and from disk where that one is bounded, too. Within a layer coming and running overlap.
struct ReplayMachine {
  std::vector<int32_t> class_of_layer;  // [n_layers]: layers whose experts are equally large
  std::vector<int64_t> n_slots;         // of each class, where experts run
  std::vector<int64_t> n_behind;        // of each class, in the tier behind; empty: it holds all
  std::string policy = kDefaultPolicy;  // of both
  std::vector<double> expert_bytes;     // [n_layers]
  std::vector<double> fetch_seconds;    // [n_layers]: one expert from the tier behind
  std::vector<double> disk_seconds;     // [n_layers]: from disk, all the way; of no use while n_behind is empty
  double run_base_seconds = 0.0;        // running an expert of average size, whatever the rows
  double run_row_seconds = 0.0;         // and for each row
  std::vector<double> base_seconds;     // of 1, 2, .. rows, the last one for all beyond: everything but experts
  double draft_seconds = 0.0;           // of a tree

  // Throws kInvalidRequest for what makes no machine for such a model.
  void check(int32_t n_layers) const;
};

struct ReplayedPass {
  int64_t n_experts = 0;  // of all layers, each once
  int64_t n_fetched = 0;  // of them not where experts run
  int64_t n_from_disk = 0;
  double bytes_fetched = 0.0;
  double bytes_from_disk = 0.0;
  double seconds = 0.0;
  double wait_seconds = 0.0;  // of them
};

// Where experts are, as passes move them.
class ReplayMemory {
 public:
  ReplayMemory(const ReplayMachine& machine, int32_t n_experts);

  // Seconds until the expert can run; 0 when it is there.
  double fetch_seconds(int32_t layer, int32_t expert) const;
  // Experts that these rows of the sets use and that are not where experts run, each once.
  int64_t missing(const ExpertSets& sets, std::span<const int64_t> rows) const;
  // One pass of a tree's rows of the sets, of which the first one is sure to stay; keep() tells of others.
  ReplayedPass pass(const ExpertSets& sets, std::span<const int64_t> rows) { return run(sets, rows, rows, 1); }
  void keep(const ExpertSets& sets, std::span<const int64_t> rows);
  // One of a prompt's rows, all of which stay and some of which go through the last layer.
  void prompt(const ExpertSets& sets, std::span<const int64_t> rows, std::span<const int64_t> last_layer) {
    run(sets, rows, last_layer, rows.size());
  }

 private:
  ReplayedPass run(const ExpertSets& sets, std::span<const int64_t> rows, std::span<const int64_t> last_layer,
                   size_t n_sure);
  void count(const ExpertSets& sets, int32_t layer, std::span<const int64_t> rows);

  const ReplayMachine& machine_;
  int32_t n_experts_;
  double mean_bytes_;
  ExpertCache here_;
  std::optional<ExpertCache> behind_;
};

// The prices that a selector sees: learned from the passes as they are while a model runs, on top of what the machine
// takes.
class ReplayCost final : public StepCost {
 public:
  ReplayCost(const ReplayMachine& machine, const ReplayMemory& memory);

  MeasuredCost& learned() { return learned_; }

  double base_seconds(int64_t n_rows) const override { return learned_.base_seconds(n_rows); }
  double iteration_seconds(int64_t n_rows) const override { return learned_.iteration_seconds(n_rows); }
  double draft_seconds() const override { return learned_.draft_seconds(); }
  double run_seconds(int32_t layer, int32_t expert, int64_t n_rows) const override {
    return learned_.run_seconds(layer, expert, n_rows);
  }
  double read_seconds(int32_t layer, int32_t expert) const override {
    return learned_.correction() * memory_.fetch_seconds(layer, expert);
  }

 private:
  const ReplayMemory& memory_;
  MeasuredCost learned_;
};

}  // namespace expertree
