#include "cpp/spec/shared_pass.h"

namespace expertree {

void SharedPass::add(const SharedRows& rows) {
  ++n_sequences_;
  n_rows_ += std::ssize(rows.nodes) + 1;
  tokens_ += rows.tokens;
  draft_seconds_ += rows.draft_seconds;
  const ExpertSets& sets = *rows.sets;
  if (sets.empty()) return;
  if (rows_of_.empty()) {
    n_layers_ = sets.n_layers;
    n_experts_ = sets.n_experts;
    rows_of_.assign(static_cast<size_t>(n_layers_) * static_cast<size_t>(n_experts_), 0);
  }
  for (int32_t layer = 0; layer < n_layers_; ++layer) {
    int32_t* counts = rows_of_.data() + layer * n_experts_;
    for (const int32_t expert : sets.of(0, layer)) ++counts[expert];
    for (const int32_t node : rows.nodes) {
      for (const int32_t expert : sets.of(node + 1, layer)) ++counts[expert];
    }
  }
}

SharedCost::SharedCost(const StepCost& alone, const SharedPass& others)
    : alone_(alone), others_(others), layers_(static_cast<size_t>(others.n_layers())) {
  for (int32_t layer = 0; layer < others.n_layers(); ++layer) {
    LayerSeconds& seconds = layers_[static_cast<size_t>(layer)];
    for (int32_t expert = 0; expert < others.n_experts(); ++expert) {
      const int32_t n_rows = others.rows_of(layer, expert);
      if (n_rows == 0) continue;
      seconds.read += alone.read_seconds(layer, expert);
      seconds.run += alone.run_seconds(layer, expert, n_rows);
    }
  }
}

LayerSeconds SharedCost::other_seconds(int32_t layer) const {
  return layers_.empty() ? LayerSeconds{} : layers_[static_cast<size_t>(layer)];
}

double SharedCost::run_seconds(int32_t layer, int32_t expert, int64_t n_rows) const {
  const int32_t n_before = others_.rows_of(layer, expert);
  const double before = n_before == 0 ? 0.0 : alone_.run_seconds(layer, expert, n_before);
  return alone_.run_seconds(layer, expert, n_before + n_rows) - before;
}

double SharedCost::read_seconds(int32_t layer, int32_t expert) const {
  return others_use(layer, expert) ? 0.0 : alone_.read_seconds(layer, expert);
}

void SharedCost::expert_prices(int32_t layer, std::span<const int32_t> experts, ExpertPrice* prices) const {
  alone_.expert_prices(layer, experts, prices);
  for (size_t i = 0; i < experts.size(); ++i) {
    if (others_use(layer, experts[i])) prices[i] = {0.0, prices[i].run_row, prices[i].run_row};
  }
}

double SharedCost::plain_seconds() const {
  const int64_t n = others_.n_sequences() + 1;
  return alone_.iteration_seconds(n) / static_cast<double>(n);
}

}  // namespace expertree
