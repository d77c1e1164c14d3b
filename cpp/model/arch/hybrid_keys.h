// Keys that architectures with recurrent layers share.
#pragma once

#include "cpp/model/arch/arch_keys.h"
#include "cpp/model/hyperparameters.h"

namespace expertree {

// Which layers are of kind `recurrent`: attention.recurrent_layers, one flag per block; without it every
// full_attention_interval-th layer (default 4) has attention.
void read_recurrent_layers(const ArchKeys& keys, Mixer recurrent, HyperParameters* h);

// What Qwen3-Next and Qwen3.5 share: gated delta nets, and gated attention in every fourth layer.
void read_qwen_hybrid(const ArchKeys& keys, HyperParameters* h);

// rope.dimension_sections, required.
void read_rope_sections(const ArchKeys& keys, HyperParameters* h);

// Experts as Qwen3-Next has them: always renormalised, beside a shared one behind a sigmoid.
void read_gated_experts(const ArchKeys& keys, HyperParameters* h);

}  // namespace expertree
