#include "cpp/sample/options.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "cpp/base/error.h"

namespace expertree {
namespace {

// `condition` is written so that NaN fails it.
template <typename T>
void require(bool condition, const std::string& option, const char* range, T value) {
  if (condition) return;
  std::ostringstream message;
  message << "sampler option " << option << ": expected " << range << ", found " << value;
  throw Error(ErrorCode::kInvalidRequest, message.str());
}

}  // namespace

void validate_sampler_options(const SamplerOptions& o, int64_t n_vocab) {
  require(std::isfinite(o.temperature), "temperature", "a finite number (0 or less: argmax)", o.temperature);
  require(o.top_k >= 0, "top_k", "0 (off) or more", o.top_k);
  require(o.top_p >= 0.0f && o.top_p <= 1.0f, "top_p", "a number from 0 to 1 (off)", o.top_p);
  require(o.min_p >= 0.0f && o.min_p <= 1.0f, "min_p", "a number from 0 (off) to 1", o.min_p);
  require(o.repeat_penalty > 0.0f && std::isfinite(o.repeat_penalty), "repeat_penalty",
          "a finite number above 0 (1: off)", o.repeat_penalty);
  require(std::isfinite(o.presence_penalty), "presence_penalty", "a finite number (0: off)", o.presence_penalty);
  require(std::isfinite(o.frequency_penalty), "frequency_penalty", "a finite number (0: off)", o.frequency_penalty);
  require(o.penalty_last_n >= -1, "penalty_last_n", "-1 (whole context), 0 (off) or more", o.penalty_last_n);
  const std::string id_range = "a token id from 0 to " + std::to_string(n_vocab - 1);
  for (const auto& [token, bias] : o.logit_bias) {
    require(token >= 0 && token < n_vocab, "logit_bias", id_range.c_str(), token);
    require(bias < std::numeric_limits<float>::infinity(), "logit_bias of token " + std::to_string(token),
            "a finite number or -inf (banned)", bias);
  }
}

}  // namespace expertree
