#include "cpp/spec/drafters/scripted.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"
#include "cpp/base/random.h"
#include "cpp/spec/drafters/tree_growth.h"

namespace expertree {
namespace {

constexpr double kLeastProbability = 1e-6;

void require_in_range(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return;
  throw Error(ErrorCode::kInvalidRequest, std::string("scripted drafter: ") + name + " is " + std::to_string(value) +
                                              "; expected " + std::to_string(least) + " to " + std::to_string(most));
}

// Independent draws, as many as asked for, for one place.
class Draws {
 public:
  Draws(uint64_t seed, int64_t place) : seed_(seed), place_(place) {}
  uint64_t bits() { return random_bits(seed_, place_, n_++); }
  double uniform() { return static_cast<double>(uniform_from_bits(bits())); }
  double normal() {  // Box and Muller
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t seed_;
  int64_t place_;
  int32_t n_ = 0;
};

class ScriptedDrafter final : public Drafter {
 public:
  explicit ScriptedDrafter(const ScriptedOptions& options) : options_(options) {
    if (options.rates.empty()) throw Error(ErrorCode::kInvalidRequest, "scripted drafter: rates is empty; give one");
    for (const double rate : options.rates) require_in_range("a rate", rate, 0.0, 1.0);
    require_in_range("spread", options.spread, 0.0, 1.0);
    require_in_range("score_noise", options.score_noise, 0.0, 10.0);
    require_in_range("seconds_per_depth", options.seconds_per_depth, 0.0, 10.0);
  }

  const char* name() const override { return "scripted"; }
  void observe(const CommittedRows&) override {}
  void truncate(int64_t) override {}

  TokenTree draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) override {
    const auto root = static_cast<int64_t>(history.size()) - 1;
    return grow_tree(limits, [&](std::span<const int32_t> frontier, const TokenTree& pool) {
      const auto depth = static_cast<int64_t>(frontier[0] < 0 ? 0 : pool.depths[static_cast<size_t>(frontier[0])]);
      std::vector<std::vector<Continuation>> lists(frontier.size());
      const int64_t position = root + depth + 1;
      if (position >= std::ssize(options_.truth)) return lists;
      charge();
      for (size_t i = 0; i < frontier.size(); ++i) {
        Draws draws(options_.seed, place(frontier[i], pool, root));
        lists[i] = children(draws, depth, position, limits.top_k, is_true(frontier[i], pool, root), sampler.n_vocab());
      }
      return lists;
    });
  }

 private:
  // By the path's tokens, so that leaving nodes out does not change the others.
  static int64_t place(int32_t node, const TokenTree& pool, int64_t root) {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;  // odd, so that no path's number is lost
    auto hash = static_cast<uint64_t>(root) << 20;
    for (; node >= 0; node = pool.parents[static_cast<size_t>(node)]) {
      hash = (hash + static_cast<uint64_t>(pool.tokens[static_cast<size_t>(node)]) + 1) * kFactor;
    }
    return static_cast<int64_t>(hash);
  }

  bool is_true(int32_t node, const TokenTree& pool, int64_t root) const {
    for (; node >= 0; node = pool.parents[static_cast<size_t>(node)]) {
      const auto i = static_cast<size_t>(node);
      if (pool.tokens[i] != options_.truth[static_cast<size_t>(root + pool.depths[i])]) return false;
    }
    return true;
  }

  std::vector<Continuation> children(Draws& draws, int64_t depth, int64_t position, int32_t n, bool below_truth,
                                     int64_t n_vocab) const {
    const auto d = std::min(static_cast<size_t>(depth), options_.rates.size() - 1);
    const double total = options_.spread < 1.0 ? (1.0 - std::pow(options_.spread, n)) / (1.0 - options_.spread) : n;
    const int32_t truth = options_.truth[static_cast<size_t>(position)];
    double left = draws.uniform();
    std::vector<Continuation> list;
    for (int32_t rank = 0; rank < n; ++rank) {
      const double chance = options_.rates[d] * std::pow(options_.spread, rank) / total;
      if (rank > 0 && chance == 0.0) break;
      const bool right = below_truth && left >= 0.0 && left < chance;
      left = right ? -1.0 : left - chance;
      const double noise = options_.score_noise > 0.0 ? std::exp(options_.score_noise * draws.normal()) : 1.0;
      const double score = std::clamp(chance * noise, kLeastProbability, 1.0);
      const int32_t token = right ? truth : decoy(draws, list, truth, n_vocab);
      if (token >= 0) list.push_back({token, static_cast<float>(score)});
    }
    return list;
  }

  // A token of the text, so that it is about as likely as others, but not the true one and not a sibling's. -1: none
  // found, as in a tiny vocabulary.
  int32_t decoy(Draws& draws, const std::vector<Continuation>& siblings, int32_t truth, int64_t n_vocab) const {
    constexpr int kTries = 16;
    for (int i = 0; i < 2 * kTries; ++i) {
      const uint64_t bits = draws.bits();
      const int32_t token = i < kTries ? options_.truth[bits % options_.truth.size()]
                                       : static_cast<int32_t>(bits % static_cast<uint64_t>(n_vocab));
      if (token != truth && std::ranges::find(siblings, token, &Continuation::token) == siblings.end()) return token;
    }
    return -1;
  }

  // On this thread and busy, as a head would be.
  void charge() const {
    const int64_t end = now_us() + static_cast<int64_t>(options_.seconds_per_depth * 1e6);
    while (now_us() < end) {
    }
  }

  ScriptedOptions options_;
};

}  // namespace

std::unique_ptr<Drafter> make_scripted_drafter(const ScriptedOptions& options) {
  return std::make_unique<ScriptedDrafter>(options);
}

}  // namespace expertree
