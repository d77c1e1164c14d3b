// Keys that architectures with recurrent layers share.
#pragma once

#include "cpp/model/arch/arch_keys.h"
#include "cpp/model/hyperparameters.h"

namespace expertree {

// The sizes of a gated delta net (keys ssm.*), checked against each other.
void read_delta_net(const ArchKeys& keys, HyperParameters* h);

// Which layers are of kind `recurrent`: attention.recurrent_layers, one flag per block; without it every
// full_attention_interval-th layer (default 4) has attention.
void read_recurrent_layers(const ArchKeys& keys, Mixer recurrent, HyperParameters* h);

// rope.dimension_sections, required.
void read_rope_sections(const ArchKeys& keys, HyperParameters* h);

// Experts as Qwen3-Next has them: always renormalised, beside a shared one behind a sigmoid.
void read_gated_experts(const ArchKeys& keys, HyperParameters* h);

}  // namespace expertree
