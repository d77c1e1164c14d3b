#include "cpp/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cpp/base/error.h"
#include "cpp/base/random.h"
#include "cpp/kernels/canonical_math.h"
#include "cpp/sample/gumbel.h"

namespace expertree {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

constexpr const char* kAllLowest = "-inf for every token";

struct RowMaximum {
  float value = kLowest;
  int64_t near = 0;      // the first token with it is this one or soon after
  bool is_sound = true;  // no NaN, no +inf
};

// Lanes, since a compiler keeps them in vectors where it may not reorder one maximum: 40 us for 152k tokens, not 265.
RowMaximum maximum_of(const float* logits, int64_t n) {
  constexpr int64_t kLanes = 16;
  constexpr int64_t kBlock = 64 * kLanes;
  RowMaximum found;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    float most[kLanes];
    int32_t bad[kLanes] = {};
    std::fill_n(most, kLanes, kLowest);
    const int64_t end = std::min(n, begin + kBlock);
    const auto add = [&](int64_t lane, float x) {
      bad[lane] |= x <= kLargest ? 0 : 1;
      most[lane] = most[lane] < x ? x : most[lane];
    };
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) add(lane, logits[i + lane]);
    }
    for (; i < end; ++i) add(0, logits[i]);
    found.is_sound = found.is_sound && std::find(bad, bad + kLanes, 1) == bad + kLanes;
    const float largest = *std::max_element(most, most + kLanes);
    if (largest <= found.value) continue;
    found.value = largest;
    found.near = begin;
  }
  return found;
}

// The best logit, the lowest id on ties; -1 when every logit is -inf. None is NaN.
int32_t argmax(const float* logits, int64_t n) {
  const RowMaximum most = maximum_of(logits, n);
  if (most.value == kLowest) return -1;
  return static_cast<int32_t>(std::find(logits + most.near, logits + n, most.value) - logits);
}

[[noreturn]] void throw_unsound(const std::string& what, int64_t position) {
  throw Error(ErrorCode::kModelFormat, "the model produced " + what + " at position " + std::to_string(position) +
                                           ": no token can be chosen. Its weights are probably damaged: compare the "
                                           "file's checksum with its publisher's or fetch it again");
}

[[noreturn]] void throw_all_banned() {
  throw Error(ErrorCode::kInvalidRequest,
              "sampler option logit_bias: it bans every token that the model considers possible; leave at least one");
}

// One more than the filter keeps shows it that there are more.
int32_t deciding_of(const SamplerOptions& options, bool adjusts, int64_t n_vocab) {
  if (adjusts) return 0;
  if (options.temperature < kGreedyTemperature) return 1;
  return options.top_k > 0 && options.top_k < n_vocab ? options.top_k + 1 : 0;
}

// Turns the scaled logits that select() left in `probability` into probabilities among the candidates.
void fill_probabilities(const Candidates& candidates, std::span<RankedToken> ranked) {
  double total = 0.0;
  for (int64_t i = 0; i < candidates.size; ++i) {
    total += static_cast<double>(canonical_exp(candidates.data[i].logit - candidates.max_logit));
  }
  for (RankedToken& token : ranked) {
    const float weight = canonical_exp(token.probability - candidates.max_logit);
    token.probability = static_cast<float>(static_cast<double>(weight) / total);
  }
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options, int64_t n_vocab)
    : seed_(options.seed), n_vocab_(n_vocab), greedy_(options.temperature < kGreedyTemperature) {
  ET_CHECK(n_vocab > 0 && n_vocab <= std::numeric_limits<int32_t>::max());
  validate_sampler_options(options, n_vocab);
  bool adjusts = false;
  for (const StageRow& row : sampler_stages()) {
    std::unique_ptr<SamplerStage> stage = row.make(options, n_vocab);
    if (stage == nullptr) continue;
    adjusts = adjusts || stage->adjusts();
    stages_.push_back(std::move(stage));
  }
  n_deciding_ = deciding_of(options, adjusts, n_vocab);
  if (adjusts) adjusted_.resize(static_cast<size_t>(n_vocab));
  candidates_.resize(static_cast<size_t>(n_vocab));
}

void Sampler::check_model_logits(const float* logits, int64_t position) const {
  const RowMaximum most = maximum_of(logits, n_vocab_);
  if (most.is_sound && most.value > kLowest) return;
  const int64_t n_bad = std::count_if(logits, logits + n_vocab_, [](float x) { return !(x <= kLargest); });
  std::string what = kAllLowest;
  if (n_bad > 0) {
    const int64_t first = std::find_if(logits, logits + n_vocab_, [](float x) { return !(x <= kLargest); }) - logits;
    what = std::string(std::isnan(logits[first]) ? "NaN" : "+inf") + " for token " + std::to_string(first) + " (" +
           std::to_string(n_bad) + " of " + std::to_string(n_vocab_) + " logits are not finite)";
  }
  throw_unsound(what, position);
}

const float* Sampler::adjusted_logits(const float* logits, int64_t position, const TokenHistory& history) {
  check_model_logits(logits, position);
  if (adjusted_.empty()) return logits;
  std::copy_n(logits, n_vocab_, adjusted_.data());
  adjust(adjusted_.data(), history);
  return adjusted_.data();
}

void Sampler::adjust(float* logits, const TokenHistory& history) {
  for (const auto& stage : stages_) stage->adjust(logits, history);
}

// Tokens that are not banned, through every filter.
Candidates Sampler::survivors(const float* adjusted) {
  Candidates candidates = {candidates_.data(), 0, kLowest, false, true};
  for (int64_t i = 0; i < n_vocab_; ++i) {
    candidates.data[candidates.size] = {static_cast<int32_t>(i), adjusted[i]};
    candidates.size += adjusted[i] > kLowest;
    candidates.max_logit = adjusted[i] > candidates.max_logit ? adjusted[i] : candidates.max_logit;
  }
  if (candidates.size == 0) throw_all_banned();
  filter(&candidates);
  return candidates;
}

void Sampler::filter(Candidates* candidates) const {
  for (const auto& stage : stages_) {
    stage->filter(*candidates);
    ET_CHECK(candidates->size > 0);
  }
}

// Insertion into the short ranked list, each token with its scaled logit where its probability will be. Most tokens are
// settled by the upper bound of their noise, without a logarithm.
int64_t Sampler::select(const Candidates& candidates, int64_t position, std::span<RankedToken> out) const {
  const int64_t wanted = static_cast<int64_t>(out.size());
  int64_t n = 0;
  uint32_t pair = 0;
  TokenPairBits pair_bits = token_pair_bits(seed_, position, pair);
  for (int64_t i = 0; i < candidates.size; ++i) {
    const auto [token, logit] = candidates.data[i];
    float score = logit;
    if (candidates.noise) {
      if (static_cast<uint32_t>(token) >> 1 != pair) {
        pair = static_cast<uint32_t>(token) >> 1;
        pair_bits = token_pair_bits(seed_, position, pair);
      }
      const uint64_t bits = (token & 1) != 0 ? pair_bits.odd : pair_bits.even;
      // Rounding is monotone, so a sum below the last kept score with a larger addend is below it with the noise too.
      if (n == wanted && logit + gumbel_upper_bound(bits) < out[static_cast<size_t>(n - 1)].score) continue;
      score = logit + gumbel_from_bits(bits);
    }
    int64_t place = n;
    while (place > 0) {
      const RankedToken& above = out[static_cast<size_t>(place - 1)];
      if (is_better({above.token, above.score}, {token, score})) break;
      --place;
    }
    if (place == wanted) continue;
    if (n < wanted) ++n;
    std::move_backward(out.begin() + place, out.begin() + n - 1, out.begin() + n);
    out[static_cast<size_t>(place)] = {token, score, logit};
  }
  return n;
}

int32_t Sampler::sample(const float* logits, int64_t position, const TokenHistory& history) {
  const float* adjusted = adjusted_logits(logits, position, history);
  if (greedy_) {  // no filter drops the best token
    const int32_t token = argmax(adjusted, n_vocab_);
    if (token < 0) throw_all_banned();
    return token;
  }
  RankedToken best;
  select(survivors(adjusted), position, {&best, 1});
  return best.token;
}

int32_t Sampler::sample(const RowLogits& row, int64_t position, const TokenHistory& history) {
  if (row.ids != nullptr) return sample_best(row, position);
  return sample(row.logits, position, history);
}

// What the filters see is what they would see of all tokens: the ones that they look at first are these.
int32_t Sampler::sample_best(const RowLogits& row, int64_t position) {
  ET_CHECK(n_deciding_ > 0 && row.width >= n_deciding_);
  if (!(row.logits[0] > kLowest)) throw_unsound(kAllLowest, position);
  if (greedy_) return row.ids[0];
  Candidates candidates = {candidates_.data(), 0, row.logits[0], false, true};
  for (int64_t i = 0; i < row.width && row.logits[i] > kLowest; ++i) {
    candidates.data[candidates.size++] = {row.ids[i], row.logits[i]};
  }
  std::sort(candidates.data, candidates.data + candidates.size,
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  filter(&candidates);
  RankedToken best;
  select(candidates, position, {&best, 1});
  return best.token;
}

SampledToken Sampler::sample_with_probability(const float* logits, int64_t position, const TokenHistory& history) {
  if (greedy_) return {sample(logits, position, history), 1.0f};
  const Candidates candidates = survivors(adjusted_logits(logits, position, history));
  RankedToken best;
  select(candidates, position, {&best, 1});
  fill_probabilities(candidates, {&best, 1});
  return {best.token, best.probability};
}

int64_t Sampler::rank(const float* logits, int64_t position, const TokenHistory& history, std::span<RankedToken> out) {
  if (out.empty()) return 0;
  const Candidates candidates = survivors(adjusted_logits(logits, position, history));
  const int64_t n = select(candidates, position, out);
  fill_probabilities(candidates, out.first(static_cast<size_t>(n)));
  return n;
}

int64_t Sampler::rank_among(std::span<Candidate> tokens, int64_t position, std::span<RankedToken> out) const {
  ET_CHECK(!tokens.empty());
  if (out.empty()) return 0;
  Candidates candidates = {tokens.data(), std::ssize(tokens), kLowest, false, true};
  for (const Candidate& token : tokens) candidates.max_logit = std::max(candidates.max_logit, token.logit);
  filter(&candidates);
  return select(candidates, position, out);
}

}  // namespace expertree
