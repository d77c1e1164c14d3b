#include "cpp/spec/predictors/oracle.h"

#include <utility>

#include "cpp/base/error.h"

namespace expertree {

ExpertSets OraclePredictor::predict(int32_t, const TokenTree& tree) {
  ExpertSets sets = std::exchange(sets_, {});
  const int64_t row_size = static_cast<int64_t>(sets.n_layers) * sets.n_used;
  const int64_t n_rows = row_size > 0 ? static_cast<int64_t>(sets.ids.size()) / row_size : 0;
  if (n_rows != tree.size() + 1) {
    throw Error(ErrorCode::kInvalidRequest, "predictor 'oracle' was fed sets of " + std::to_string(n_rows) +
                                                " rows for a tree of " + std::to_string(tree.size()) +
                                                " nodes and the root; feed it before every draft");
  }
  return sets;
}

}  // namespace expertree
