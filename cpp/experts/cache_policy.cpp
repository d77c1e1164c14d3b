#include "cpp/experts/cache_policy.h"

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr PolicyRow kTable[] = {
    {"lru", false, false, false, &make_lru},
    {"lfu-decay", false, false, false, &make_lfu_decay},
    {"layer-lfu", false, false, false, &make_layer_lfu},
    {"pinned", true, false, false, &make_pinned},
    {"belady", false, true, false, &make_belady},
    {"values", false, false, true, &make_values},
};

}  // namespace

std::span<const PolicyRow> policy_table() { return kTable; }

const PolicyRow& find_policy(const std::string& name) {
  std::string known = "auto";
  for (const PolicyRow& row : kTable) {
    if (name == row.name) return row;
    if (!row.needs_future && !row.needs_values) known += std::string(", ") + row.name;
  }
  throw Error(ErrorCode::kInvalidRequest, "unknown policy '" + name.substr(0, 32) + "'; known: " + known);
}

std::unique_ptr<CachePolicy> make_policy(const std::string& name, const PolicyContext& context) {
  const PolicyRow& row = find_policy(name);
  if (row.needs_profile && context.profile.empty()) {
    throw Error(ErrorCode::kInvalidRequest,
                "policy '" + name +
                    "' needs a profile of earlier use and there is none; run once with another "
                    "policy and save the profile, or use auto");
  }
  if (row.needs_future && context.future == nullptr) {
    throw Error(ErrorCode::kInvalidRequest, "policy '" + name +
                                                "' needs a recorded trace of what will be used: it is the bound that "
                                                "tools/pager_sim.py compares with; use auto to run a model");
  }
  if (row.needs_values && context.values == nullptr) {
    throw Error(ErrorCode::kInvalidRequest,
                "policy '" + name +
                    "' goes by what a Python object says; give Model(policy=) one of a class "
                    "derived from expertree.CachePolicy");
  }
  return row.make(context);
}

}  // namespace expertree
