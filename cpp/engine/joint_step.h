// A step of several sessions of one model: each drafts, all trees are chosen together and verified in one pass, in which
// an expert is read and its weights are gone through once for all of them. A session alone is the case of one.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "cpp/engine/session.h"

namespace expertree {

constexpr int64_t kMostSessions = 8;
constexpr int64_t kAnyRows = std::numeric_limits<int64_t>::max();

struct SessionOutcome {
  std::optional<StepRecord> record;  // nullopt without an error: the context is full
  std::exception_ptr error;  // of this session alone; it is as it was
};

// requests: one for each session. max_rows: of the pass; at least one for each session, whose last token is run in any
// case. Each session gets the tokens that it would get alone. Throws kInvalidRequest, before anything is done, for no
// sessions or too many, the same one twice, one that is busy, sessions of different models, and a budget of rows that is
// too small; and what an interrupt check throws between layers, when every session is as it was. While a session drafts,
// that is its error.
std::vector<SessionOutcome> step_together(std::span<Session* const> sessions, std::span<const StepRequest> requests,
                                          int64_t max_rows);

}  // namespace expertree
