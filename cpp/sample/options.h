// What a request may ask of the sampler.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace expertree {

struct SamplerOptions {
  float temperature = 0.0f;           // below kGreedyTemperature (0, negative, 1e-9): argmax, no noise
  int32_t top_k = 0;                  // keep the k best; 0: off
  float top_p = 1.0f;                 // [0, 1] keep the smallest set with at least this probability; 1: off
  float min_p = 0.0f;                 // [0, 1] keep tokens at least this probable, relative to the best; 0: off
  float repeat_penalty = 1.0f;        // > 0: divides positive and multiplies negative logits of seen tokens; 1: off
  float presence_penalty = 0.0f;      // subtracted once from the logit of a seen token
  float frequency_penalty = 0.0f;     // subtracted once per occurrence
  int32_t penalty_last_n = 64;        // how many last tokens count as seen; -1: the whole context; 0: off
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to logits; -inf bans a token; entries for one id add up
  uint64_t seed = 0;
};

// Below this a temperature means argmax. Dividing by less would only magnify rounding noise.
constexpr float kGreedyTemperature = 1e-6f;

// Throws kInvalidRequest naming the option, its range and the value found.
void validate_sampler_options(const SamplerOptions& options, int64_t n_vocab);

}  // namespace expertree
