#include "cpp/model/arch/draft_file.h"

#include "cpp/base/error.h"

namespace expertree {
namespace {

// Index of the first id that is out of range or a repetition; -1: none.
int64_t first_bad_id(const std::vector<int64_t>& ids, int64_t n_vocab) {
  std::vector<bool> seen(static_cast<size_t>(n_vocab), false);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= n_vocab || seen[static_cast<size_t>(ids[i])]) return static_cast<int64_t>(i);
    seen[static_cast<size_t>(ids[i])] = true;
  }
  return -1;
}

}  // namespace

void require_draft_architecture(const GgufReader& reader, const char* expected) {
  const std::string found = reader.require_string("general.architecture");
  if (found == expected) return;
  throw Error(ErrorCode::kInvalidRequest,
              reader.paths()[0] + ": the file's architecture is '" + found.substr(0, 64) + "'; expected '" + expected +
                  "'. Give a file of that kind, or 'model:" + "FILE' for a whole language model as drafter");
}

void throw_wrong_target(const GgufReader& reader, const Model& target, const std::string& found,
                        const std::string& wanted) {
  throw Error(ErrorCode::kInvalidRequest, reader.paths()[0] + ": the file has " + found + "; " + target.path() +
                                              " needs " + wanted +
                                              ". It was trained for another model; use the one made for this model");
}

void load_draft_weights(const TensorPlan& plan, const GgufReader& reader, PageBuffer* arena) {
  require_memory(plan.bytes(), "loading " + reader.paths()[0]);
  plan.load(arena, nullptr);
}

std::vector<int32_t> checked_target_ids(const std::vector<int64_t>& ids, const std::string& where, int64_t n_vocab) {
  const int64_t bad = first_bad_id(ids, n_vocab);
  if (bad < 0) return {ids.begin(), ids.end()};
  throw Error(ErrorCode::kModelFormat, where + " maps draft id " + std::to_string(bad) + " to " +
                                           std::to_string(ids[static_cast<size_t>(bad)]) +
                                           "; expected distinct ids below the model's vocabulary of " +
                                           std::to_string(n_vocab) + ". The file is damaged or for another model");
}

std::vector<int32_t> target_ids_from_d2t(const std::vector<int64_t>& d2t, const std::string& where, int64_t n_vocab) {
  if (first_bad_id(d2t, n_vocab) < 0) return {d2t.begin(), d2t.end()};
  std::vector<int64_t> ids(d2t.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    // A sum that could overflow is out of range either way.
    const bool sane = d2t[i] > -n_vocab - static_cast<int64_t>(i) && d2t[i] < n_vocab;
    ids[i] = sane ? static_cast<int64_t>(i) + d2t[i] : d2t[i];
  }
  return checked_target_ids(ids, where, n_vocab);
}

}  // namespace expertree
