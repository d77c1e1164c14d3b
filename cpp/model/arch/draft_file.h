// What the loaders of draft heads share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpp/model/arch/tensor_plan.h"
#include "cpp/model/model.h"

namespace expertree {

// Throws kInvalidRequest unless the file's general.architecture is `expected`.
void require_draft_architecture(const GgufReader& reader, const char* expected);

// Throws kInvalidRequest: this file is not for this target. `found` and `wanted` are phrases.
[[noreturn]] void throw_wrong_target(const GgufReader& reader, const Model& target, const std::string& found,
                                     const std::string& wanted);

// Checks the weights' size against memory, and reads them.
void load_draft_weights(const TensorPlan& plan, const GgufReader& reader, PageBuffer* arena);

// The target's id of every draft id, in range and distinct; throws kModelFormat naming the first that is not.
std::vector<int32_t> checked_target_ids(const std::vector<int64_t>& ids, const std::string& where, int64_t n_vocab);

// Draft ids given either as absolute target ids or as offsets to the draft id, told apart: absolute ids are in range and
// distinct. Offsets of rising ids are that only if no two of the ids are neighbours, which no vocabulary of frequent
// tokens has.
std::vector<int32_t> target_ids_from_d2t(const std::vector<int64_t>& d2t, const std::string& where, int64_t n_vocab);

}  // namespace expertree
