#include "cpp/engine/recorded_run.h"

#include <algorithm>
#include <string>

#include "cpp/base/error.h"

namespace expertree {
namespace {

[[noreturn]] void refuse_run(const std::string& what) {
  throw Error(ErrorCode::kInvalidRequest, "recorded run: " + what + "; the file is damaged, record it again");
}

void check_sets(const ExpertSets& sets, const ExpertSets& like, int64_t n_rows, const std::string& what) {
  if (sets.n_layers != like.n_layers || sets.n_experts != like.n_experts || sets.n_used != like.n_used ||
      std::ssize(sets.ids) != n_rows * like.n_layers * like.n_used) {
    refuse_run(what + " has not the shape of " + std::to_string(n_rows) + " rows of " + std::to_string(like.n_layers) +
               " layers");
  }
  for (int64_t row = 0; row < n_rows; ++row) {
    for (int32_t layer = 0; layer < sets.n_layers; ++layer) {
      const std::span<const int32_t> ids = sets.of(row, layer);
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool repeated = std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]) !=
                              ids.begin() + static_cast<std::ptrdiff_t>(i);
        if (ids[i] < 0 || ids[i] >= sets.n_experts || repeated) {
          refuse_run(what + " names expert " + std::to_string(ids[i]) + " of " + std::to_string(sets.n_experts) +
                     (repeated ? " twice" : ""));
        }
      }
    }
  }
}

}  // namespace

void RecordedRun::check(int64_t n_vocab) const {
  if (positions.empty() || text.size() <= positions.size()) {
    refuse_run(std::to_string(positions.size()) + " positions of a text of " + std::to_string(text.size()) + " tokens");
  }
  if (prompt.n_layers < 1 || prompt.n_experts < 1 || prompt.n_used < 1 || prompt.n_used > prompt.n_experts) {
    refuse_run("a model of " + std::to_string(prompt.n_layers) + " layers and " + std::to_string(prompt.n_used) +
               " of " + std::to_string(prompt.n_experts) + " experts");
  }
  const int64_t prompt_row = static_cast<int64_t>(prompt.n_layers) * prompt.n_used;
  check_sets(prompt, prompt, std::ssize(prompt.ids) / prompt_row, "the prompt's routing");
  for (size_t i = 0; i < positions.size(); ++i) {
    const Position& p = positions[i];
    const std::string where = "position " + std::to_string(i);
    p.tree.check(where.c_str(), n_vocab);
    check_sets(p.routed, prompt, p.tree.size() + 1, where + "'s routing");
    if (!p.predicted.empty()) check_sets(p.predicted, prompt, p.tree.size() + 1, where + "'s prediction");
  }
}

ReplayedPath walk(const RecordedRun& run, int64_t at, std::span<const int32_t> selected) {
  const TokenTree& tree = run.positions[static_cast<size_t>(at)].tree;
  ReplayedPath path;
  int32_t node = -1;
  for (auto next = static_cast<size_t>(at) + 1; next < run.text.size(); ++next) {
    ++path.n_tokens;
    if (next + 1 == run.text.size()) break;  // a step ends with the text
    const auto child = std::ranges::find_if(selected, [&](int32_t candidate) {
      const auto i = static_cast<size_t>(candidate);
      return tree.parents[i] == node && tree.tokens[i] == run.text[next];
    });
    if (child == selected.end()) break;
    node = *child;
    path.accepted.push_back(node);
  }
  return path;
}

}  // namespace expertree
