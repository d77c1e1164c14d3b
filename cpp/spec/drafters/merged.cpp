#include "cpp/spec/drafters/merged.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr double kRate = 0.05;         // of one draft: some 20 of them are remembered
constexpr double kLeastWeight = 0.02;  // so that a drafter can come back
// Of what a drafter leaves over for tokens that it does not name, one token's share.
constexpr double kUnnamed = 0.1;

double chance(std::span<const std::pair<int32_t, float>> said, int32_t token) {
  double left = 1.0;
  for (const auto& [named, score] : said) {
    if (named == token) return static_cast<double>(score);
    left -= static_cast<double>(score);
  }
  return kUnnamed * std::max(left, 0.01);
}

}  // namespace

MergedDrafter::MergedDrafter(std::vector<std::unique_ptr<Drafter>> parts, int64_t n_embd)
    : parts_(std::move(parts)), n_embd_(n_embd) {
  ET_CHECK(!parts_.empty());
  for (const auto& part : parts_) {
    name_ += (name_.empty() ? "" : "+") + std::string(part->name());
    const FeatureRequest wanted = part->features();
    std::vector<size_t> places;
    for (const int32_t layer : wanted.tap_layers) {
      const auto found = std::ranges::find(features_.tap_layers, layer);
      places.push_back(static_cast<size_t>(found - features_.tap_layers.begin()));
      if (found == features_.tap_layers.end()) features_.tap_layers.push_back(layer);
    }
    taps_.push_back(std::move(places));
    features_.last_hidden = features_.last_hidden || wanted.last_hidden;
  }
  weights_.assign(parts_.size(), 1.0 / static_cast<double>(parts_.size()));
  said_.resize(parts_.size());
}

void MergedDrafter::observe(const CommittedRows& rows) {
  const auto width = static_cast<size_t>(n_embd_);
  const size_t stride = features_.tap_layers.size() * width;
  std::vector<float> taps;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const FeatureRequest wanted = parts_[p]->features();
    CommittedRows own{rows.tokens, rows.first_position};
    if (wanted.last_hidden) own.last_hidden = rows.last_hidden;
    if (!wanted.tap_layers.empty() && rows.taps != nullptr) {
      taps.clear();
      for (size_t r = 0; r < rows.tokens.size(); ++r) {
        for (const size_t place : taps_[p]) {
          const float* first = rows.taps + r * stride + place * width;
          taps.insert(taps.end(), first, first + width);
        }
      }
      own.taps = taps.data();
    }
    parts_[p]->observe(own);
  }
}

void MergedDrafter::truncate(int64_t length) {
  for (const auto& part : parts_) part->truncate(length);
  n_history_ = 0;
}

// From the token that followed the last draft's root.
void MergedDrafter::learn(std::span<const int32_t> history) {
  if (n_history_ == 0 || history.size() <= n_history_) return;
  const int32_t token = history[n_history_];
  double awake = 0.0;
  double mixture = 0.0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (said_[p].empty()) continue;
    awake += weights_[p];
    mixture += weights_[p] * chance(said_[p], token);
  }
  double sum = 0.0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (!said_[p].empty()) {
      const double share = awake * weights_[p] * chance(said_[p], token) / mixture;
      weights_[p] = std::max(kLeastWeight, weights_[p] + kRate * (share - weights_[p]));
    }
    sum += weights_[p];
  }
  for (double& weight : weights_) weight /= sum;
}

TokenTree MergedDrafter::draft(std::span<const int32_t> history, const DraftLimits& limits, Sampler& sampler) {
  learn(history);
  n_history_ = 0;
  std::vector<TokenTree> trees;
  for (const auto& part : parts_) {
    // A mixture's score is never above the largest, so least_score holds for the parts, too.
    trees.push_back(part->draft(history, limits, sampler));
    trees.back().check(part->name(), sampler.n_vocab());
  }
  for (size_t p = 0; p < parts_.size(); ++p) {
    said_[p].clear();
    for (size_t v = 0; v < trees[p].tokens.size(); ++v) {
      if (trees[p].parents[v] < 0) said_[p].emplace_back(trees[p].tokens[v], trees[p].scores[v]);
    }
  }
  n_history_ = history.size();
  return merge(trees).best(limits.max_nodes, limits.max_depth);
}

TokenTree MergedDrafter::merge(std::span<const TokenTree> trees) const {
  double awake = 0.0;
  for (size_t p = 0; p < trees.size(); ++p) awake += trees[p].size() > 0 ? weights_[p] : 0.0;
  TokenTree merged;
  std::vector<double> scores;
  for (size_t p = 0; p < trees.size(); ++p) {
    const TokenTree& tree = trees[p];
    std::vector<int32_t> place(tree.tokens.size());
    for (size_t v = 0; v < tree.tokens.size(); ++v) {
      const int32_t parent = tree.parents[v] < 0 ? -1 : place[static_cast<size_t>(tree.parents[v])];
      place[v] = merged.add(tree.tokens[v], parent, 1.0f);
      scores.resize(merged.tokens.size(), 0.0);
      scores[static_cast<size_t>(place[v])] += weights_[p] / awake * static_cast<double>(tree.scores[v]);
    }
  }
  for (size_t v = 0; v < scores.size(); ++v) {
    const float above = merged.parents[v] < 0 ? 1.0f : merged.scores[static_cast<size_t>(merged.parents[v])];
    merged.scores[v] = std::clamp(static_cast<float>(scores[v]), std::numeric_limits<float>::min(), above);
  }
  return merged;
}

HeadInputs* MergedDrafter::head_inputs() {
  for (const auto& part : parts_) {
    if (HeadInputs* inputs = part->head_inputs()) return inputs;
  }
  return nullptr;
}

uint64_t MergedDrafter::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->memory_bytes();
  return bytes;
}

}  // namespace expertree
