// Repeat, presence and frequency penalties on the tokens seen last. As in llama.cpp: repeat divides a positive logit
// and multiplies a negative one, then frequency * count + presence is subtracted.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/sample/stage.h"

namespace expertree {
namespace {

class Penalties final : public SamplerStage {
 public:
  Penalties(const SamplerOptions& options, int64_t n_vocab)
      : repeat_(options.repeat_penalty),
        presence_(options.presence_penalty),
        frequency_(options.frequency_penalty),
        last_n_(options.penalty_last_n),
        counts_(static_cast<size_t>(n_vocab), 0) {
    const size_t n_distinct = last_n_ < 0 ? counts_.size() : std::min(counts_.size(), static_cast<size_t>(last_n_));
    seen_.reserve(n_distinct);
  }

  bool adjusts() const override { return true; }

  void adjust(float* logits, const TokenHistory& history) override {
    for (int32_t token : seen_) counts_[static_cast<size_t>(token)] = 0;
    seen_.clear();
    const size_t window = last_n_ < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(last_n_);
    const size_t n_path = std::min(window, history.path.size());
    const size_t n_committed = std::min(window - n_path, history.committed.size());
    count(history.committed.last(n_committed));
    count(history.path.last(n_path));
    for (int32_t token : seen_) penalise(&logits[token], counts_[static_cast<size_t>(token)]);
  }

 private:
  void count(std::span<const int32_t> tokens) {
    for (int32_t token : tokens) {
      if (token < 0 || static_cast<size_t>(token) >= counts_.size()) {
        throw Error(ErrorCode::kInvalidRequest, "penalties: token " + std::to_string(token) +
                                                    " in the history is not in the vocabulary of " +
                                                    std::to_string(counts_.size()) + " tokens");
      }
      if (counts_[static_cast<size_t>(token)]++ == 0) seen_.push_back(token);
    }
  }

  void penalise(float* logit, int32_t n_times) const {
    if (*logit == -std::numeric_limits<float>::infinity()) return;
    float value = *logit > 0.0f ? *logit / repeat_ : *logit * repeat_;
    value -= static_cast<float>(n_times) * frequency_ + presence_;
    // Extreme options may overflow; a penalty neither bans a token nor makes it infinite.
    constexpr float kLargest = std::numeric_limits<float>::max();
    *logit = std::clamp(value, -kLargest, kLargest);
  }

  float repeat_;
  float presence_;
  float frequency_;
  int32_t last_n_;
  std::vector<int32_t> counts_;  // [n_vocab], zero outside seen_
  std::vector<int32_t> seen_;    // distinct tokens of the window
};

}  // namespace

std::unique_ptr<SamplerStage> make_penalties(const SamplerOptions& options, int64_t n_vocab) {
  const bool neutral =
      options.repeat_penalty == 1.0f && options.presence_penalty == 0.0f && options.frequency_penalty == 0.0f;
  if (neutral || options.penalty_last_n == 0) return nullptr;
  return std::make_unique<Penalties>(options, n_vocab);
}

}  // namespace expertree
