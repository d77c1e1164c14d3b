#include "cpp/model/arch/hybrid_keys.h"

#include <limits>

#include "cpp/base/error.h"

namespace expertree {
namespace {

[[noreturn]] void throw_key(const ArchKeys& keys, const char* key, const std::string& found,
                            const std::string& expected) {
  throw Error(ErrorCode::kModelFormat, keys.reader().paths()[0] + ": key '" + keys.full(key) + "' is " + found +
                                           "; expected " + expected +
                                           ". The file is damaged or was converted wrongly; get it again");
}

}  // namespace

void read_delta_net(const ArchKeys& keys, HyperParameters* h) {
  constexpr int64_t kMostTaps = 64;
  constexpr int64_t kWidestHead = 1 << 14;
  RecurrentParameters& r = h->recurrent;
  r.n_taps = keys.require_int("ssm.conv_kernel");
  r.head_dim = keys.require_int("ssm.state_size");
  r.n_value_heads = keys.require_int("ssm.time_step_rank");
  r.n_key_heads = keys.require_int("ssm.group_count");
  const int64_t inner = keys.require_int("ssm.inner_size");
  if (r.n_taps > kMostTaps) throw_key(keys, "ssm.conv_kernel", std::to_string(r.n_taps), "at most 64");
  if (r.head_dim > kWidestHead) throw_key(keys, "ssm.state_size", std::to_string(r.head_dim), "at most 16384");
  if (inner != r.n_values()) {
    throw_key(keys, "ssm.inner_size", std::to_string(inner),
              "ssm.time_step_rank * ssm.state_size = " + std::to_string(r.n_values()));
  }
  if (r.n_value_heads % r.n_key_heads != 0) {
    throw_key(keys, "ssm.group_count", std::to_string(r.n_key_heads),
              "a divisor of ssm.time_step_rank " + std::to_string(r.n_value_heads));
  }
  r.n_channels = 2 * r.n_keys() + r.n_values();
}

void read_recurrent_layers(const ArchKeys& keys, Mixer recurrent, HyperParameters* h) {
  h->mixers.assign(static_cast<size_t>(h->n_layers), Mixer::kAttention);
  const char* listed = "attention.recurrent_layers";
  const GgufValue* value = keys.reader().find(keys.full(listed));
  if (value != nullptr) {
    const int64_t n_blocks = h->n_layers + h->n_nextn_layers;
    std::vector<bool> flags;
    if (value->type == GgufValueType::kBool ||
        (value->type == GgufValueType::kArray && value->element_type == GgufValueType::kBool)) {
      flags = keys.reader().require_bools(keys.full(listed), n_blocks);
    } else {  // as numbers, which other writers use
      const std::vector<int64_t> numbers = keys.reader().require_ints(keys.full(listed), n_blocks, 0, 1);
      flags.assign(numbers.begin(), numbers.end());
    }
    for (size_t i = 0; i < h->mixers.size(); ++i) {
      if (flags[i]) h->mixers[i] = recurrent;
    }
    return;
  }
  const int64_t interval = keys.int_or("full_attention_interval", 4);
  for (int64_t i = 0; i < h->n_layers; ++i) {
    if ((i + 1) % interval != 0) h->mixers[static_cast<size_t>(i)] = recurrent;
  }
}

void read_rope_sections(const ArchKeys& keys, HyperParameters* h) {
  const char* key = "rope.dimension_sections";
  const std::vector<int64_t> sections =
      keys.reader().require_ints(keys.full(key), 4, 0, std::numeric_limits<int32_t>::max());
  int64_t sum = 0;
  std::string found;
  for (size_t i = 0; i < 4; ++i) {
    h->rope_sections[i] = sections[i];
    sum += sections[i];
    found += (i ? ", " : "[") + std::to_string(sections[i]);
  }
  if (sum < 1 || sum > h->head_dim_k) {
    throw_key(keys, key, found + "]", "sections of 1 to " + std::to_string(h->head_dim_k) + " pairs in all");
  }
}

void read_gated_experts(const ArchKeys& keys, HyperParameters* h) {
  read_experts(keys, h);
  h->moe.renormalize = true;
  h->moe.shared = SharedExpert::kSigmoidGate;
  const auto width_or = [&](const char* key, int64_t divisor) {
    return keys.has(key) ? keys.require_int(key) : require_dense_width(keys, *h) / divisor;
  };
  h->moe.n_ff = width_or("expert_feed_forward_length", h->moe.n_used);
  h->moe.n_ff_shared = width_or("expert_shared_feed_forward_length", 1);
}

}  // namespace expertree
