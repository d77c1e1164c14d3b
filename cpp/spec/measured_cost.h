// Prices that are measured where the model runs, and corrected by what every step really took.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp/experts/cost_model.h"
#include "cpp/experts/residency.h"
#include "cpp/spec/correction_fit.h"
#include "cpp/spec/row_cost_fit.h"
#include "cpp/spec/step_cost.h"

namespace expertree {

struct MeasuredStep {
  int64_t n_rows = 1;              // the root's included
  int64_t n_experts = 0;           // summed over layers, each expert of a layer once
  int64_t n_expert_rows = 0;       // summed over layers: rows times experts per row
  double seconds = 0.0;            // of the whole pass
  double wait_seconds = 0.0;       // of them waiting for experts
  double predicted_seconds = 0.0;  // step_seconds() when the nodes were chosen; 0: nobody asked
  int64_t n_device_experts = 0;    // of n_experts, those that ran on a device
  int64_t n_device_rows = 0;       // and their rows
};

// What was learned, to be kept for the next run on the same machine with the same model.
struct CostProfile {
  std::vector<int64_t> n_rows;
  std::vector<double> base_seconds;       // [n_rows.size()]
  std::vector<double> iteration_seconds;  // [n_rows.size()]
  double correction = 1.0;
  double wait_seconds = 0.0;
  double row_seconds = 0.0;
};

// Row counts worth a step each before the first draft: 1, 2, 4, .. max_rows. Steps with these many rows, record()ed,
// are the calibration.
std::vector<int64_t> calibration_rows(int64_t max_rows);

// Not thread-safe.
class MeasuredCost final : public StepCost {
 public:
  // residency: outlives this; nullptr: every expert is in memory. expert_bytes: of one expert, [n_layers].
  MeasuredCost(const Residency* residency, std::vector<double> expert_bytes);

  // Of a pass by itself, its experts in memory.
  double alone_seconds(int64_t n_rows, int64_t n_experts, int64_t n_expert_rows) const {
    return base_seconds(n_rows) + costs_.run_base_seconds * static_cast<double>(n_experts) +
           costs_.run_row_seconds * static_cast<double>(n_expert_rows);
  }

  // What the pager measured so far; before each choice is often enough.
  void set_costs(const ExpertCosts& costs);
  void record(const MeasuredStep& step);
  void record_draft(double seconds);
  CostProfile profile() const;
  void restore(const CostProfile& profile);
  // Measured over predicted time of experts; see CorrectionFit.
  double correction() const { return correction_.scale(); }
  // What is waited in a pass however many experts are read; part of base_seconds().
  double wait_seconds() const { return correction_.wait_seconds(); }

  double base_seconds(int64_t n_rows) const override;
  double run_seconds(int32_t layer, int32_t expert, int64_t n_rows) const override;
  double read_seconds(int32_t layer, int32_t expert) const override;
  void expert_prices(int32_t layer, std::span<const int32_t> experts, ExpertPrice* prices) const override;
  double iteration_seconds(int64_t n_rows) const override;
  double draft_seconds() const override { return draft_seconds_; }
  double mean_expert_seconds(int32_t n_layers, int32_t n_used) const override {
    return StepCost::mean_expert_seconds(n_layers, n_used) + wait_seconds() / (static_cast<double>(n_layers) * n_used);
  }

 private:
  bool is_on_device(int32_t layer, int32_t expert) const;
  void price();

  const Residency* residency_;
  std::vector<double> expert_bytes_;  // [n_layers]
  double mean_bytes_ = 0.0;
  ExpertCosts costs_;
  std::vector<double> read_;       // [n_layers], corrected seconds of an expert
  std::vector<double> run_first_;  // [n_layers]
  double run_row_ = 0.0;
  std::vector<double> device_first_;  // [n_layers], of an expert that is on a device
  double device_row_ = 0.0;
  RowCostFit base_;
  RowCostFit iteration_;
  double draft_seconds_ = 0.0;
  double draft_weight_ = 0.0;
  CorrectionFit correction_;
};

}  // namespace expertree
