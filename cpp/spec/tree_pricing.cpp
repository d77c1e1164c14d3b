#include "cpp/spec/tree_pricing.h"

namespace expertree {

void TreePricing::reset(const TokenTree& tree, const ExpertSets& sets, const StepCost& cost, bool blind) {
  tree_ = &tree;
  sets_ = &sets;
  const auto n_nodes = static_cast<size_t>(tree.size());
  stride_ = sets.empty() ? 0 : static_cast<size_t>((sets.n_layers + kLanes - 1) / kLanes * kLanes);
  base_.assign(n_nodes + 2, 0.0);
  for (size_t n = 1; n < base_.size(); ++n) {
    base_[n] =
        sets.empty() ? cost.iteration_seconds(static_cast<int64_t>(n)) : cost.base_seconds(static_cast<int64_t>(n));
  }
  for (std::vector<float>* values : {&node_read_, &node_run_}) values->assign(n_nodes * stride_, 0.0f);
  for (std::vector<float>* values : {&path_read_, &path_run_}) values->resize(n_nodes * stride_);
  for (std::vector<float>* values : {&other_read_, &other_run_}) values->assign(stride_, 0.0f);
  path_nodes_.assign(n_nodes, 0);
  inside_.assign(n_nodes, 0);
  n_rows_ = 1;
  expert_seconds_ = 0.0;
  if (sets.empty()) return;
  for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
    const LayerSeconds others = cost.other_seconds(layer);
    other_read_[static_cast<size_t>(layer)] = static_cast<float>(others.read);
    other_run_[static_cast<size_t>(layer)] = static_cast<float>(others.run);
  }
  read_ = other_read_;
  run_ = other_run_;
  experts_.reset(tree, sets, true);
  fetch_prices(cost, blind);
  fill_marginals();
  expert_seconds_ = total(read_.data(), run_.data());
}

void TreePricing::fetch_prices(const StepCost& cost, bool blind) {
  const auto n_experts = static_cast<size_t>(sets_->n_experts);
  prices_.resize(static_cast<size_t>(sets_->n_layers) * n_experts);
  fetched_.resize(n_experts);
  ExpertPrice mean = {};
  double count = 0.0;
  for (int32_t layer = 0; layer < sets_->n_layers; ++layer) {
    const std::span<const int32_t> used = experts_.distinct(layer);
    cost.expert_prices(layer, used, fetched_.data());
    ExpertPrice* prices = prices_.data() + static_cast<size_t>(layer) * n_experts;
    for (size_t i = 0; i < used.size(); ++i) prices[used[i]] = fetched_[i];
    for (size_t i = 0; blind && i < used.size(); ++i) {
      mean.read += fetched_[i].read;
      mean.run_first += fetched_[i].run_first;
      mean.run_row += fetched_[i].run_row;
      count += 1.0;
    }
  }
  if (!blind) return;
  std::fill(prices_.begin(), prices_.end(),
            ExpertPrice{mean.read / count, mean.run_first / count, mean.run_row / count});
}

void TreePricing::fill_marginals() {
  for (int32_t layer = 0; layer < sets_->n_layers; ++layer) {
    const ExpertPrice* prices = prices_.data() + static_cast<size_t>(layer) * static_cast<size_t>(sets_->n_experts);
    for (const int32_t expert : sets_->of(0, layer)) {
      read_[static_cast<size_t>(layer)] += static_cast<float>(prices[expert].read);
      run_[static_cast<size_t>(layer)] += static_cast<float>(prices[expert].run_first);
    }
    // Every expert of a node is one more row; those that no ancestor has may be new as well.
    for (size_t v = 0; v < inside_.size(); ++v) {
      double rows = 0.0;
      for (const int32_t expert : sets_->of(static_cast<int64_t>(v) + 1, layer)) rows += prices[expert].run_row;
      node_run_[v * stride_ + static_cast<size_t>(layer)] = static_cast<float>(rows);
    }
  }
  for (size_t v = 0; v < inside_.size(); ++v) {
    for (const int32_t key : experts_.own(static_cast<int32_t>(v))) {
      const ExpertPrice& price = prices_[static_cast<size_t>(key)];
      const size_t at = v * stride_ + static_cast<size_t>(key / sets_->n_experts);
      node_read_[at] += static_cast<float>(price.read);
      node_run_[at] += static_cast<float>(price.run_first - price.run_row);
    }
  }
}

// Sum over layers of max(reading, running).
double TreePricing::total(const float* read, const float* run) const {
  float lanes[kLanes] = {};
  for (size_t l = 0; l < stride_; l += kLanes) {
    for (int32_t i = 0; i < kLanes; ++i) lanes[i] += read[l + i] > run[l + i] ? read[l + i] : run[l + i];
  }
  double sum = 0.0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

double TreePricing::path_seconds(int32_t node) {
  const auto v = static_cast<size_t>(node);
  const int32_t parent = tree_->parents[v];
  const bool starts_here = parent < 0 || has(parent);
  path_nodes_[v] = 1 + (starts_here ? 0 : path_nodes_[static_cast<size_t>(parent)]);
  float lanes[kLanes] = {};
  float* path_read = path_read_.data() + v * stride_;
  float* path_run = path_run_.data() + v * stride_;
  const float* node_read = node_read_.data() + v * stride_;
  const float* node_run = node_run_.data() + v * stride_;
  if (starts_here) {
    std::copy_n(node_read, stride_, path_read);
    std::copy_n(node_run, stride_, path_run);
  } else {
    const float* above_read = path_read_.data() + static_cast<size_t>(parent) * stride_;
    const float* above_run = path_run_.data() + static_cast<size_t>(parent) * stride_;
    for (size_t l = 0; l < stride_; ++l) {
      path_read[l] = above_read[l] + node_read[l];
      path_run[l] = above_run[l] + node_run[l];
    }
  }
  for (size_t l = 0; l < stride_; l += kLanes) {
    for (int32_t i = 0; i < kLanes; ++i) {
      const float read = read_[l + i] + path_read[l + i];
      const float run = run_[l + i] + path_run[l + i];
      lanes[i] += read > run ? read : run;
    }
  }
  double sum = 0.0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return sum - expert_seconds_ + base_[static_cast<size_t>(n_rows_ + path_nodes_[v])] -
         base_[static_cast<size_t>(n_rows_)];
}

void TreePricing::add(int32_t node) {
  const auto v = static_cast<size_t>(node);
  inside_[v] = 1;
  ++n_rows_;
  if (stride_ == 0) return;
  for (size_t l = 0; l < stride_; ++l) {
    read_[l] += node_read_[v * stride_ + l];
    run_[l] += node_run_[v * stride_ + l];
  }
  expert_seconds_ = total(read_.data(), run_.data());
  experts_.add(node, [&](int32_t u, int32_t key) {
    const ExpertPrice& price = prices_[static_cast<size_t>(key)];
    const size_t at = static_cast<size_t>(u) * stride_ + static_cast<size_t>(key / sets_->n_experts);
    node_read_[at] -= static_cast<float>(price.read);
    node_run_[at] -= static_cast<float>(price.run_first - price.run_row);
  });
}

// Adds a row's experts to the counts and to the times, or takes them away.
void TreePricing::count_rows(int32_t node, int32_t sign) {
  for (int32_t layer = 0; layer < sets_->n_layers; ++layer) {
    const size_t first = static_cast<size_t>(layer) * static_cast<size_t>(sets_->n_experts);
    double read = 0.0;
    double run = 0.0;
    for (const int32_t expert : sets_->of(node + 1, layer)) {
      int32_t& rows = rows_of_[first + static_cast<size_t>(expert)];
      const ExpertPrice& price = prices_[first + static_cast<size_t>(expert)];
      const bool only = sign > 0 ? rows == 0 : rows == 1;
      rows += sign;
      run += only ? price.run_first : price.run_row;
      read += only ? price.read : 0.0;
    }
    read_[static_cast<size_t>(layer)] += static_cast<float>(sign * read);
    run_[static_cast<size_t>(layer)] += static_cast<float>(sign * run);
  }
}

void TreePricing::set_nodes(std::span<const int32_t> nodes) {
  std::fill(inside_.begin(), inside_.end(), 0);
  for (const int32_t v : nodes) inside_[static_cast<size_t>(v)] = 1;
  n_rows_ = static_cast<int64_t>(nodes.size()) + 1;
  if (stride_ == 0) return;
  read_ = other_read_;
  run_ = other_run_;
  rows_of_.assign(prices_.size(), 0);
  count_rows(-1, 1);
  for (const int32_t v : nodes) count_rows(v, 1);
  expert_seconds_ = total(read_.data(), run_.data());
}

double TreePricing::seconds_without(int32_t leaf) const {
  double sum = base_[static_cast<size_t>(n_rows_ - 1)];
  if (stride_ == 0) return sum;
  for (int32_t layer = 0; layer < sets_->n_layers; ++layer) {
    const size_t first = static_cast<size_t>(layer) * static_cast<size_t>(sets_->n_experts);
    double read = static_cast<double>(read_[static_cast<size_t>(layer)]);
    double run = static_cast<double>(run_[static_cast<size_t>(layer)]);
    for (const int32_t expert : sets_->of(leaf + 1, layer)) {
      const ExpertPrice& price = prices_[first + static_cast<size_t>(expert)];
      const bool only = rows_of_[first + static_cast<size_t>(expert)] == 1;
      run -= only ? price.run_first : price.run_row;
      read -= only ? price.read : 0.0;
    }
    sum += std::max(read, run);
  }
  return sum;
}

void TreePricing::remove(int32_t leaf) {
  inside_[static_cast<size_t>(leaf)] = 0;
  --n_rows_;
  if (stride_ == 0) return;
  count_rows(leaf, -1);
  expert_seconds_ = total(read_.data(), run_.data());
}

}  // namespace expertree
