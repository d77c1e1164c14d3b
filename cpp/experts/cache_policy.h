// Which expert leaves memory when another one needs its slot: the plug point, and the table of its plugs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/experts/expert_values.h"
#include "cpp/experts/routing_trace.h"

namespace expertree {

constexpr double kProfileRows = 64.0;  // what a profile weighs, in rows seen

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;

  // The text goes on by n rows (tokens). Only rows that stay are counted: what a draft looked at in vain says little
  // about what is needed next.
  virtual void begin_rows(int64_t) {}
  // So many of them go through this layer; those of a prompt that nobody asks about leave out the last one.
  virtual void begin_layer(int32_t, int64_t) {}
  // n of these use the expert; told once per expert, in layer order.
  virtual void use(ExpertKey key, int64_t n_rows) = 0;
  // The index of the one to give up. `keys` is not empty; none of them is in use.
  virtual size_t victim(std::span<const ExpertKey> keys) = 0;
  // Whether that one may go for an expert that somebody expects a step to need.
  virtual bool may_go_for_guess(ExpertKey /*victim*/, ExpertKey /*guess*/) { return true; }
};

// What a policy may know when it starts.
struct PolicyContext {
  int32_t n_layers = 0;
  int32_t n_experts = 0;
  // Uses per row of each expert in earlier runs, [n_layers * n_experts]; empty: no profile.
  std::vector<float> profile;
  // What will be used from now on; for the bound alone.
  std::shared_ptr<const RoutingTrace> future;
  // For the policy that goes by them.
  std::shared_ptr<const ExpertValues> values;
};

struct PolicyRow {
  const char* name;
  bool needs_profile;
  bool needs_future;
  bool needs_values;
  std::unique_ptr<CachePolicy> (*make)(const PolicyContext& context);
};
std::span<const PolicyRow> policy_table();

constexpr const char* kDefaultPolicy = "layer-lfu";

// The row of a name. Throws kInvalidRequest with the known names.
const PolicyRow& find_policy(const std::string& name);

// Throws kInvalidRequest for a name that is not in the table, or when the context lacks what the policy needs.
std::unique_ptr<CachePolicy> make_policy(const std::string& name, const PolicyContext& context);

// One per file, for the table.
std::unique_ptr<CachePolicy> make_lru(const PolicyContext& context);
std::unique_ptr<CachePolicy> make_lfu_decay(const PolicyContext& context);
std::unique_ptr<CachePolicy> make_layer_lfu(const PolicyContext& context);
std::unique_ptr<CachePolicy> make_pinned(const PolicyContext& context);
std::unique_ptr<CachePolicy> make_belady(const PolicyContext& context);
std::unique_ptr<CachePolicy> make_values(const PolicyContext& context);

}  // namespace expertree
