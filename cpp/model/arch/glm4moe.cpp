// glm4moe: GLM 4.5, 4.5 Air and 4.6; rotary embedding of half a head, sigmoid routing with a selection bias, a shared
// expert; the MTP block behind the last layer.
#include "cpp/model/arch/architecture.h"

namespace expertree {
namespace {

// Text has one position in the first three sections, and 0 in the fourth, whose pairs would not turn.
void check_sections(const ArchKeys& keys) {
  const char* key = "rope.dimension_sections";
  if (!keys.has(key)) return;
  const std::vector<int64_t> sections = keys.require_ints(key, -1, 0);
  if (sections.size() > 3 && sections[3] > 0) {
    keys.refuse_feature(key, "an array whose fourth section has " + std::to_string(sections[3]) + " pairs",
                        "a fourth section of positions");
  }
}

}  // namespace

const Architecture kGlm4Moe = {
    .name = "glm4moe",
    .read =
        [](const ArchKeys& keys, HyperParameters* h) {
          read_common(keys, h);
          h->rope_style = RopeStyle::kSplitHalf;
          check_sections(keys);
          h->qk_norm = QkNorm::kPerHead;
          h->qk_norm_weights = Presence::kOptional;
          h->ffn_norm = "post_attention_norm";
          read_experts(keys, h);
          read_leading_dense(keys, h);
          h->moe.n_ff = keys.require_same_int("expert_feed_forward_length", 0);
          if (h->moe.n_ff == 0) h->moe.n_ff = h->n_ff / h->moe.n_used;
          read_shared_experts(keys, h->moe.n_ff, h);
          h->moe.selection_bias = Presence::kRequired;
          read_weights_rule(keys, h);
          const Gating fallback = Gating::kSigmoid;
          read_gating(keys, &fallback, h);
        },
};

}  // namespace expertree
