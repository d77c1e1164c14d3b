#include "cpp/spec/measured_cost.h"

#include <algorithm>
#include <numeric>

namespace expertree {
namespace {

constexpr double kDraftKeep = 0.9;
constexpr double kInFlightShare = 0.5;   // of a read is left on average
constexpr int32_t kRestoredWeight = 4;   // steps that an earlier run counts for, per row count

}  // namespace

std::vector<int64_t> calibration_rows(int64_t max_rows) {
  std::vector<int64_t> rows;
  for (int64_t n = 1; n < max_rows; n *= 2) rows.push_back(n);
  if (max_rows >= 1) rows.push_back(max_rows);
  return rows;
}

MeasuredCost::MeasuredCost(const Residency* residency, std::vector<double> expert_bytes)
    : residency_(residency),
      expert_bytes_(std::move(expert_bytes)),
      read_(expert_bytes_.size(), 0.0),
      run_first_(expert_bytes_.size(), 0.0),
      device_first_(expert_bytes_.size(), 0.0) {
  if (expert_bytes_.empty()) return;
  mean_bytes_ =
      std::accumulate(expert_bytes_.begin(), expert_bytes_.end(), 0.0) / static_cast<double>(expert_bytes_.size());
}

void MeasuredCost::set_costs(const ExpertCosts& costs) {
  costs_ = costs;
  price();
}

void MeasuredCost::price() {
  run_row_ = correction() * costs_.run_row_seconds;
  device_row_ = correction() * costs_.device_row_seconds;
  for (size_t layer = 0; layer < expert_bytes_.size(); ++layer) {
    // Running is bound by reading weights from memory: larger experts take longer.
    const double size = mean_bytes_ > 0.0 ? expert_bytes_[layer] / mean_bytes_ : 1.0;
    read_[layer] = correction() * costs_.read_seconds(expert_bytes_[layer]);
    run_first_[layer] = correction() * costs_.run_base_seconds * size + run_row_;
    device_first_[layer] = correction() * costs_.device_base_seconds * size + device_row_;
  }
}

void MeasuredCost::record(const MeasuredStep& step) {
  const double run = costs_.run_base_seconds * static_cast<double>(step.n_experts - step.n_device_experts) +
                     costs_.run_row_seconds * static_cast<double>(step.n_expert_rows - step.n_device_rows) +
                     costs_.device_base_seconds * static_cast<double>(step.n_device_experts) +
                     costs_.device_row_seconds * static_cast<double>(step.n_device_rows);
  const double predicted = step.predicted_seconds - base_seconds(step.n_rows);
  if (step.predicted_seconds > 0.0 && predicted > 0.0)
    correction_.add(predicted / correction(), static_cast<double>(step.n_rows - 1), run + step.wait_seconds);
  base_.add(step.n_rows, std::max(0.0, step.seconds - step.wait_seconds - run));
  iteration_.add(step.n_rows, step.seconds);
  price();
}

void MeasuredCost::record_draft(double seconds) {
  draft_weight_ = kDraftKeep * draft_weight_ + 1.0;
  draft_seconds_ += (seconds - draft_seconds_) / draft_weight_;
}

CostProfile MeasuredCost::profile() const {
  CostProfile profile = {base_.seen(), {}, {}, correction(), correction_.wait_seconds(), correction_.row_seconds()};
  for (const int64_t n : profile.n_rows) {
    profile.base_seconds.push_back(base_.seconds(n));
    profile.iteration_seconds.push_back(iteration_.seconds(n));
  }
  return profile;
}

void MeasuredCost::restore(const CostProfile& profile) {
  correction_.restore(profile.correction, profile.wait_seconds, profile.row_seconds);
  for (size_t i = 0; i < profile.n_rows.size(); ++i) {
    for (int32_t j = 0; j < kRestoredWeight; ++j) {
      base_.add(profile.n_rows[i], profile.base_seconds[i]);
      iteration_.add(profile.n_rows[i], profile.iteration_seconds[i]);
    }
  }
  price();
}

// Before the first step is recorded, what the pager saw of single tokens.
double MeasuredCost::base_seconds(int64_t n_rows) const {
  const double waits = correction_.wait_seconds() + static_cast<double>(n_rows - 1) * correction_.row_seconds();
  return (base_.empty() ? costs_.step_seconds : base_.seconds(n_rows)) + waits;
}

double MeasuredCost::iteration_seconds(int64_t n_rows) const {
  return iteration_.empty() ? costs_.step_seconds : iteration_.seconds(n_rows);
}

bool MeasuredCost::is_on_device(int32_t layer, int32_t expert) const {
  return residency_ != nullptr && residency_->state(layer, expert) == ExpertState::kOnDevice;
}

double MeasuredCost::run_seconds(int32_t layer, int32_t expert, int64_t n_rows) const {
  if (n_rows <= 0) return 0.0;
  const auto more = static_cast<double>(n_rows - 1);
  const auto l = static_cast<size_t>(layer);
  return is_on_device(layer, expert) ? device_first_[l] + device_row_ * more : run_first_[l] + run_row_ * more;
}

double MeasuredCost::read_seconds(int32_t layer, int32_t expert) const {
  if (residency_ == nullptr) return 0.0;
  switch (residency_->state(layer, expert)) {
    case ExpertState::kOnDevice:
    case ExpertState::kResident: return 0.0;
    case ExpertState::kInFlight: return kInFlightShare * read_[static_cast<size_t>(layer)];
    case ExpertState::kMissing: return read_[static_cast<size_t>(layer)];
  }
  return 0.0;
}

void MeasuredCost::expert_prices(int32_t layer, std::span<const int32_t> experts, ExpertPrice* prices) const {
  const double first = run_first_[static_cast<size_t>(layer)];
  const ExpertPrice on_device = {0.0, device_first_[static_cast<size_t>(layer)], device_row_};
  for (size_t i = 0; i < experts.size(); ++i) {
    if (is_on_device(layer, experts[i])) {
      prices[i] = on_device;
    } else {
      prices[i] = {read_seconds(layer, experts[i]), first, run_row_};
    }
  }
}

}  // namespace expertree
