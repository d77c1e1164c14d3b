// What the bindings of selectors, prices and predictors share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <vector>

#include "cpp/spec/expert_sets.h"
#include "cpp/spec/step_cost.h"
#include "cpp/spec/token_tree.h"

namespace expertree {

struct TestingCost {
  std::unique_ptr<StepCost> cost;
};

using TestingIds = nanobind::ndarray<const int32_t, nanobind::ndim<3>, nanobind::c_contig, nanobind::device::cpu>;

// tokens: empty for 0, 1, 2, ..
TokenTree testing_tree(const std::vector<int32_t>& parents, const std::vector<float>& scores,
                       const std::vector<int32_t>& tokens);
// ids: [rows][n_layers][n_used]
ExpertSets testing_sets(const std::optional<TestingIds>& ids, int32_t n_experts);

}  // namespace expertree
