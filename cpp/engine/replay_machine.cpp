#include "cpp/engine/replay_machine.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpp/base/error.h"
#include "cpp/experts/cache_simulation.h"

namespace expertree {
namespace {

[[noreturn]] void refuse_machine(const std::string& what) {
  throw Error(ErrorCode::kInvalidRequest, "replay machine: " + what);
}

void require_seconds(const char* name, std::span<const double> seconds) {
  for (const double s : seconds) {
    if (!std::isfinite(s) || s < 0.0)
      refuse_machine(std::string(name) + " holds " + std::to_string(s) + "; expected seconds");
  }
}

void require_size(const char* name, size_t size, size_t expected) {
  if (size == expected) return;
  refuse_machine(std::string(name) + " has " + std::to_string(size) + " values; expected " + std::to_string(expected));
}

ExpertCache make_cache(const ReplayMachine& machine, const std::vector<int64_t>& n_slots, int32_t n_experts) {
  const auto n_layers = static_cast<int32_t>(machine.class_of_layer.size());
  std::vector<std::unique_ptr<CachePolicy>> policies;
  policies.push_back(make_policy(machine.policy, {n_layers, n_experts, {}, nullptr, all_alike(n_layers, n_experts)}));
  return ExpertCache({n_layers, n_experts, machine.class_of_layer, n_slots}, std::move(policies));
}

}  // namespace

void ReplayMachine::check(int32_t n_layers) const {
  const auto n = static_cast<size_t>(n_layers);
  require_size("class_of_layer", class_of_layer.size(), n);
  require_size("expert_bytes", expert_bytes.size(), n);
  require_size("fetch_seconds", fetch_seconds.size(), n);
  require_size("disk_seconds", disk_seconds.size(), n);
  if (base_seconds.empty()) refuse_machine("base_seconds is empty; give the time of one row");
  for (const int32_t c : class_of_layer) {
    if (c < 0 || static_cast<size_t>(c) >= n_slots.size()) refuse_machine("a layer is of class " + std::to_string(c));
  }
  if (!n_behind.empty()) require_size("n_behind", n_behind.size(), n_slots.size());
  for (const std::vector<int64_t>* slots : {&n_slots, &n_behind}) {
    for (const int64_t s : *slots) {
      if (s < 1 || s > int64_t{1} << 24) refuse_machine(std::to_string(s) + " slots of a class; expected at least 1");
    }
  }
  require_seconds("expert_bytes", expert_bytes);
  require_seconds("fetch_seconds", fetch_seconds);
  require_seconds("disk_seconds", disk_seconds);
  require_seconds("base_seconds", base_seconds);
  require_seconds("the rest", std::vector<double>{run_base_seconds, run_row_seconds, draft_seconds});
}

ReplayMemory::ReplayMemory(const ReplayMachine& machine, int32_t n_experts)
    : machine_(machine),
      n_experts_(n_experts),
      mean_bytes_(std::accumulate(machine.expert_bytes.begin(), machine.expert_bytes.end(), 0.0) /
                  static_cast<double>(machine.expert_bytes.size())),
      here_(make_cache(machine, machine.n_slots, n_experts)) {
  if (!machine.n_behind.empty()) behind_.emplace(make_cache(machine, machine.n_behind, n_experts));
}

double ReplayMemory::fetch_seconds(int32_t layer, int32_t expert) const {
  const auto l = static_cast<size_t>(layer);
  if (here_.find(here_.key(layer, expert)) >= 0) return 0.0;
  const bool is_behind = !behind_ || behind_->find(behind_->key(layer, expert)) >= 0;
  return is_behind ? machine_.fetch_seconds[l] : machine_.disk_seconds[l];
}

int64_t ReplayMemory::missing(const ExpertSets& sets, std::span<const int64_t> rows) const {
  std::vector<bool> seen(static_cast<size_t>(n_experts_));
  int64_t n = 0;
  for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
    std::fill(seen.begin(), seen.end(), false);
    for (const int64_t row : rows) {
      for (const int32_t expert : sets.of(row, layer)) {
        if (!seen[static_cast<size_t>(expert)] && fetch_seconds(layer, expert) > 0.0) ++n;
        seen[static_cast<size_t>(expert)] = true;
      }
    }
  }
  return n;
}

void ReplayMemory::count(const ExpertSets& sets, int32_t layer, std::span<const int64_t> rows) {
  if (rows.empty()) return;
  std::vector<int32_t> experts;
  for (const int64_t row : rows) {
    const std::span<const int32_t> ids = sets.of(row, layer);
    experts.insert(experts.end(), ids.begin(), ids.end());
  }
  here_.count(layer, experts, std::ssize(rows));
  if (behind_) behind_->count(layer, experts, std::ssize(rows));
}

void ReplayMemory::keep(const ExpertSets& sets, std::span<const int64_t> rows) {
  for (int32_t layer = 0; layer < sets.n_layers; ++layer) count(sets, layer, rows);
}

ReplayedPass ReplayMemory::run(const ExpertSets& sets, std::span<const int64_t> rows,
                               std::span<const int64_t> last_layer, size_t n_sure) {
  ReplayedPass pass;
  const auto n_rows = std::min(rows.size(), machine_.base_seconds.size());
  pass.seconds = machine_.base_seconds[n_rows - 1];
  here_.begin_step();
  if (behind_) behind_->begin_step();
  std::vector<int64_t> rows_of(static_cast<size_t>(n_experts_));
  std::vector<int32_t> used;
  for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    std::fill(rows_of.begin(), rows_of.end(), 0);
    const std::span<const int64_t> layer_rows = layer + 1 == sets.n_layers ? last_layer : rows;
    for (const int64_t row : layer_rows) {
      for (const int32_t expert : sets.of(row, layer)) ++rows_of[static_cast<size_t>(expert)];
    }
    used.clear();
    double run = 0.0;
    for (int32_t expert = 0; expert < n_experts_; ++expert) {
      const int64_t n = rows_of[static_cast<size_t>(expert)];
      if (n == 0) continue;
      used.push_back(expert);
      const double size = mean_bytes_ > 0.0 ? machine_.expert_bytes[l] / mean_bytes_ : 1.0;
      run += machine_.run_base_seconds * size + machine_.run_row_seconds * static_cast<double>(n);
    }
    count(sets, layer, layer_rows.first(std::min(n_sure, layer_rows.size())));
    const std::vector<int32_t> fetched = simulate_layer(&here_, layer, used);
    const auto n_from_disk = static_cast<int64_t>(behind_ ? simulate_layer(&*behind_, layer, fetched).size() : 0);
    const auto n_fetched = static_cast<int64_t>(fetched.size());
    const double fetch = static_cast<double>(n_fetched - n_from_disk) * machine_.fetch_seconds[l] +
                         static_cast<double>(n_from_disk) * machine_.disk_seconds[l];
    pass.n_experts += static_cast<int64_t>(used.size());
    pass.n_fetched += n_fetched;
    pass.n_from_disk += n_from_disk;
    pass.bytes_fetched += static_cast<double>(n_fetched) * machine_.expert_bytes[l];
    pass.bytes_from_disk += static_cast<double>(n_from_disk) * machine_.expert_bytes[l];
    pass.seconds += std::max(run, fetch);
    pass.wait_seconds += std::max(0.0, fetch - run);
  }
  return pass;
}

ReplayCost::ReplayCost(const ReplayMachine& machine, const ReplayMemory& memory)
    : memory_(memory), learned_(nullptr, machine.expert_bytes) {
  learned_.set_costs({0.0, machine.run_base_seconds, machine.run_row_seconds, machine.base_seconds.front()});
  learned_.record_draft(machine.draft_seconds);
}

}  // namespace expertree
