#include "cpp/model/arch/hybrid_keys.h"

#include <limits>

#include "cpp/model/arch/key_groups.h"

namespace expertree {
namespace {

// The sizes of a gated delta net (keys ssm.*), checked against each other.
void read_delta_net(const ArchKeys& keys, HyperParameters* h) {
  constexpr int64_t kWidestHead = 1 << 14;
  RecurrentParameters& r = h->recurrent;
  r.n_taps = keys.require_int("ssm.conv_kernel");
  r.head_dim = keys.require_int("ssm.state_size");
  r.n_value_heads = keys.require_int("ssm.time_step_rank");
  r.n_key_heads = keys.require_int("ssm.group_count");
  const int64_t inner = keys.require_int("ssm.inner_size");
  if (r.n_taps > kMostTaps) keys.refuse_value("ssm.conv_kernel", r.n_taps, "at most 64");
  if (r.head_dim > kWidestHead) keys.refuse_value("ssm.state_size", r.head_dim, "at most 16384");
  if (inner != r.n_values()) {
    keys.refuse_value("ssm.inner_size", inner, "ssm.time_step_rank * ssm.state_size = " + std::to_string(r.n_values()));
  }
  if (r.n_value_heads % r.n_key_heads != 0) {
    keys.refuse_value("ssm.group_count", r.n_key_heads,
                      "a divisor of ssm.time_step_rank " + std::to_string(r.n_value_heads));
  }
  r.n_channels = 2 * r.n_keys() + r.n_values();
}

}  // namespace

void read_qwen_hybrid(const ArchKeys& keys, HyperParameters* h) {
  read_common(keys, h);
  h->rope_style = RopeStyle::kSplitHalf;
  h->qk_norm = QkNorm::kPerHead;
  h->gated_attention = true;
  h->ffn_norm = "post_attention_norm";
  read_delta_net(keys, h);
  read_recurrent_layers(keys, Mixer::kDeltaNet, h);
}

void read_recurrent_layers(const ArchKeys& keys, Mixer recurrent, HyperParameters* h) {
  std::vector<bool> flags;
  const char* listed = "attention.recurrent_layers";
  const GgufValue* value = keys.reader().find(keys.full(listed));
  const int64_t n_blocks = h->n_layers + h->n_nextn_layers;
  if (value == nullptr) {
    const int64_t interval = keys.int_or("full_attention_interval", 4);
    for (int64_t i = 0; i < h->n_layers; ++i) flags.push_back((i + 1) % interval != 0);
  } else if (value->type == GgufValueType::kBool ||
             (value->type == GgufValueType::kArray && value->element_type == GgufValueType::kBool)) {
    flags = keys.reader().require_bools(keys.full(listed), n_blocks);
  } else {  // as numbers, which other writers use
    const std::vector<int64_t> numbers = keys.reader().require_ints(keys.full(listed), n_blocks, 0, 1);
    flags.assign(numbers.begin(), numbers.end());
  }
  for (size_t i = 0; i < h->layers.size(); ++i) {
    if (!flags[i]) continue;
    h->layers[i].mixer = recurrent;
    h->layers[i].n_kv_heads = 0;
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
    keys.refuse_value(key, found + "]", "sections of 1 to " + std::to_string(h->head_dim_k) + " pairs in all");
  }
}

void read_gated_experts(const ArchKeys& keys, HyperParameters* h) {
  read_experts(keys, h);
  h->moe.renormalize = true;
  h->moe.shared = SharedExpert::kSigmoidGate;
  h->moe.n_ff = keys.same_int_or("expert_feed_forward_length", h->n_ff / h->moe.n_used);
  h->moe.n_ff_shared = keys.int_or("expert_shared_feed_forward_length", h->n_ff);
  if (h->moe.n_ff_shared < 1) {
    keys.refuse_value("expert_shared_feed_forward_length", h->moe.n_ff_shared, "the width of the shared expert");
  }
}

}  // namespace expertree
