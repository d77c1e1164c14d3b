#include "cpp/base/error.h"
#include "cpp/spec/selector.h"
#include "cpp/spec/selector_argument.h"
#include "cpp/spec/selectors/selectors.h"

namespace expertree {
namespace {

using MakeSelector = std::unique_ptr<Selector> (*)(SelectorArgument&);

// The same order in both.
constexpr SelectorInfo kSelectorInfos[] = {
    {"all", "", "the whole tree"},
    {"chain", "K, default 4", "the likeliest path, at most K nodes"},
    {"threshold", "RHO, default 0.8", "the fewest nodes that hold the share RHO of all scores"},
    {"evict", "bonus=counted|ignored", "the k best nodes, by measured time per number of rows (EVICT)"},
    {"ecospec", "GAMMA, default 8; eps=1, start=root|empty", "GAMMA nodes by score per new expert (EcoSpec)"},
    {"ecospec-static", "GAMMA, default 8; eps=1", "GAMMA nodes by score per expert of the path (EcoSpec's ablation)"},
    {"s2moe", "", "nodes whose score is worth their new experts (S2-MoE's admission rule)"},
    {"cascade", "SELECTOR, default chain:16", "as many of another selector's nodes as trials find to pay (Cascade)"},
    {"moespec", "B, default 16",
     "the whole tree on B experts of each layer; LOSSY: it changes the text, for comparisons only (MoE-Spec)"},
    {"residency", "places=known|ignored, guard=on|off",
     "most tokens per second, experts priced by where they are; the default"},
    {"exhaustive", "", "the best of all subtrees, for tests; up to 16 nodes"},
};
constexpr MakeSelector kSelectorMakers[] = {
    &make_all,   &make_chain,   &make_threshold, &make_evict,     &make_ecospec,    &make_ecospec_static,
    &make_s2moe, &make_cascade, &make_moespec,   &make_residency, &make_exhaustive,
};
static_assert(std::size(kSelectorInfos) == std::size(kSelectorMakers));

}  // namespace

std::unique_ptr<Selector> make_selector(const std::string& spec) {
  const size_t colon = std::min(spec.find(':'), spec.size());
  const std::string name = spec.substr(0, colon);
  std::string known;
  for (size_t i = 0; i < std::size(kSelectorInfos); ++i) {
    if (name == kSelectorInfos[i].name) {
      SelectorArgument argument(name, colon < spec.size() ? spec.substr(colon + 1) : "");
      std::unique_ptr<Selector> selector = kSelectorMakers[i](argument);
      argument.check_all_taken();
      return selector;
    }
    known += (known.empty() ? "" : ", ") + std::string(kSelectorInfos[i].name);
  }
  throw Error(ErrorCode::kInvalidRequest, "unknown selector '" + name.substr(0, 32) + "'; known: " + known);
}

std::span<const SelectorInfo> selector_infos() { return kSelectorInfos; }

}  // namespace expertree
