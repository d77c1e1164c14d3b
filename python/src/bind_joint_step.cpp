// Steps of several sessions for Python. No logic.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "cpp/engine/joint_step.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {

void bind_joint_step(nb::module_& m) {
  nb::class_<SessionOutcome>(m, "SessionOutcome")
      .def(
          "take",
          [](SessionOutcome& outcome) {
            if (outcome.error) std::rethrow_exception(outcome.error);
            return std::move(outcome.record);
          },
          "The StepRecord, None when the context is full; raises the session's error.");
  m.def(
      "step_together",
      [](const std::vector<Session*>& sessions, const std::vector<std::optional<int64_t>>& max_tokens,
         const std::vector<int32_t>& end_tokens, int64_t max_rows) {
        std::vector<StepRequest> requests;
        for (const std::optional<int64_t>& most : max_tokens) {
          requests.push_back({.end_tokens = end_tokens});
          if (most) requests.back().max_tokens = *most;
        }
        nb::gil_scoped_release released;
        return step_together(sessions, requests, max_rows);
      },
      "sessions"_a, "max_tokens"_a, "end_tokens"_a, "max_rows"_a, "max_tokens: one for each session.");
  m.attr("MOST_SESSIONS") = kMostSessions;
}

}  // namespace expertree
