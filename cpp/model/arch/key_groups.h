// Groups of keys that many architectures share. Each reads its keys with the defaults that llama.cpp has.
#pragma once

#include "cpp/model/arch/arch_keys.h"
#include "cpp/model/hyperparameters.h"

namespace expertree {

// Keys that every transformer of this kind has: sizes, heads, context, eps (h->layer_norm, set before, says of which
// norm), rope. Fills in h->layers.
void read_common(const ArchKeys& keys, HyperParameters* h);

// rope.*, for heads of head_dim_k elements. Scaling by long and short factors is refused unless h->rope_factors, set
// before, says that the architecture has them.
void read_rope(const ArchKeys& keys, HyperParameters* h);

// What multiplies sin and cos: rope.scaling.attn_factor, and YaRN's own where it is on.
double rope_magnitude(const ArchKeys& keys, bool yarn, double frequency_scale);

// Whether rope.scaling.type says so.
bool has_long_factors(const ArchKeys& keys);

// expert_count, expert_used_count and the groups, checked against each other; every layer has experts.
void read_experts(const ArchKeys& keys, HyperParameters* h);

// expert_gating_func; `fallback` where the file has none or 0, nullptr: it must have one.
void read_gating(const ArchKeys& keys, const Gating* fallback, HyperParameters* h);

// expert_weights_norm and expert_weights_scale.
void read_weights_rule(const ArchKeys& keys, HyperParameters* h);

// leading_dense_block_count: layers before the first with experts.
void read_leading_dense(const ArchKeys& keys, HyperParameters* h);

// Shared experts, as many as expert_shared_count says, in one matrix; each `width` wide.
void read_shared_experts(const ArchKeys& keys, int64_t width, HyperParameters* h);

// attention.sliding_window_pattern: flags by layer, or a period (default `period`, negative: there is none) whose last
// layer, or first with dense_first, sees everything.
void read_window_layers(const ArchKeys& keys, int64_t period, bool dense_first, HyperParameters* h);

// What windowed layers turn with: rope.freq_base_swa (default `base`). Their frequencies are scaled by what the file says
// even with rope.scaling.type "none", as in llama.cpp; or not at all.
enum class WindowedScale : uint8_t { kOfFile, kOne };
void read_windowed_rope(const ArchKeys& keys, double base, WindowedScale scale, HyperParameters* h);

// Throws when the file gives windowed layers heads of another size than others, which only Gemma 4 has.
void refuse_windowed_sizes(const ArchKeys& keys, const HyperParameters& h);

// logit_scale (a divisor, required), residual_scale, embedding_scale and attention.scale; 0 means none.
void read_scales(const ArchKeys& keys, HyperParameters* h);

// Throws unless the layers' sizes fit each other; called when a data sheet has been read.
void check_layers(const ArchKeys& keys, const HyperParameters& h);

}  // namespace expertree
